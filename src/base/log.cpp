#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "base/environment.h"

namespace lockstep::base {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> shared = [] {
    auto made = std::make_shared<spdlog::logger>("lockstep",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("lockstep: %l: %v");
    const std::string asked = environment("LOCKSTEP_LOG").value_or("warn");
    const auto level = spdlog::level::from_str(asked);
    const bool known = level != spdlog::level::off || asked == "off";
    made->set_level(known ? level : spdlog::level::warn);
    if (!known)
      made->warn("LOCKSTEP_LOG={} is none of debug, info, warn, error and off: taken for warn",
                 asked);
    return made;
  }();
  return *shared;
}

}  // namespace

void set_log_name(const std::string& name) {
  logger().set_pattern("lockstep " + name + ": %l: %v");
}

bool log_enabled(LogLevel level) {
  return logger().should_log(to_spdlog(level));
}

void log_line(LogLevel level, std::string_view line) {
  logger().log(to_spdlog(level), "{}", line);
}

}  // namespace lockstep::base
