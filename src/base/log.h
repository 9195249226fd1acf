// The project's log: to standard error, one line a message, level from LOCKSTEP_LOG
// (debug, info, warn, error, off; default warn). Never a secret, never a file's content.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace lockstep::base {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// Names the process in every later line, such as "rank 3" or "launcher".
void set_log_name(const std::string& name);

bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view line);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace lockstep::base
