#include "app/report/job_report.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <vector>

#include "base/atomic_file.h"
#include "base/choice.h"
#include "base/diagnosis.h"
#include "base/files.h"
#include "control/launch/events.h"
#include "control/launch/launcher.h"

namespace lockstep::app {
namespace {

using control::JobEvent;
using Json = nlohmann::ordered_json;

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// To a microsecond: more digits would say nothing.
Json ms_or_null(const std::optional<double>& ms) {
  return ms ? Json(std::round(*ms * 1000) / 1000) : Json(nullptr);
}

// "signal": "SIGKILL", "code": 1 …: what the number of an event means.
void add_value(Json& json, const JobEvent& event) {
  if (!event.value) return;
  switch (event.kind) {
    case JobEvent::Kind::kKilled: {
      const char* const name = ::sigabbrev_np(*event.value);
      json["signal"] = name != nullptr ? fmt::format("SIG{}", name) : std::to_string(*event.value);
      return;
    }
    case JobEvent::Kind::kExited:
    case JobEvent::Kind::kRefused:
      json["code"] = *event.value;
      return;
    case JobEvent::Kind::kResized:
      json["workers"] = *event.value;
      return;
    default:
      return;
  }
}

Json to_json(const JobEvent& event) {
  Json json;
  json["at_s"] = std::round(event.at_s * 1e6) / 1e6;
  json["what"] = base::word_for(event.kind, control::kEventKinds);
  json["worker"] = or_null(event.worker);
  json["host"] = event.host.empty() ? Json(nullptr) : Json(event.host);
  add_value(json, event);
  json["text"] = event.text;
  if (event.waited_s) json["waited_s"] = *event.waited_s;
  if (event.starting_ms) json["starting_ms"] = ms_or_null(event.starting_ms);
  json["generation"] = or_null(event.generation);
  json["formed_ms"] = ms_or_null(event.formed_ms);
  json["first_phase_ms"] = ms_or_null(event.first_phase_ms);
  return json;
}

// A worker that hung is noted when it has ended, and other events may have come between.
Json to_json(std::vector<JobEvent> events) {
  std::stable_sort(events.begin(), events.end(),
                   [](const auto& a, const auto& b) { return a.at_s < b.at_s; });
  Json list = Json::array();
  for (const auto& event : events) list.push_back(to_json(event));
  return list;
}

void write_json(const std::string& path, const Json& json) {
  // Names and texts may hold any bytes.
  base::write_file(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

// Says whether a file has been written since: each writer makes a new one.
using FileStamp = std::tuple<dev_t, ino_t, time_t, decltype(timespec::tv_nsec)>;
std::optional<FileStamp> stamp(const std::string& path) {
  struct stat file {};
  if (path.empty() || ::stat(path.c_str(), &file) != 0) return std::nullopt;
  return FileStamp{file.st_dev, file.st_ino, file.st_mtim.tv_sec, file.st_mtim.tv_nsec};
}

void add_events(const std::string& path, const std::vector<JobEvent>& events) {
  std::ifstream file(path);
  Json json = Json::parse(std::string(std::istreambuf_iterator<char>(file), {}), nullptr, false);
  if (!json.is_object()) return;  // none of ours
  json["events"] = to_json(events);
  write_json(path, json);
}

}  // namespace

int run_with_report(control::RunOptions options, ReportPart part) {
  const std::string path = options.report;
  std::optional<std::vector<JobEvent>> events;
  if (!path.empty()) {
    options.when_over = [&](const control::JobEvents& all) { events = all.list(); };
  }
  const auto before = stamp(path);
  const int workers = options.workers;
  const int code = control::run_job(std::move(options));
  if (!events) return code;
  try {
    if (part == ReportPart::kWhole) {
      write_json(path, {{"workers", workers}, {"exit_code", code}, {"events", to_json(*events)}});
    } else if (const auto now = stamp(path); now && now != before) {
      add_events(path, *events);
    }
  } catch (const std::exception& error) {
    if (code == 0) throw;
    fmt::print(stderr, "lockstep: {}\n", base::diagnosis(error));
  }
  return code;
}

void check_report_path(const std::string& option, const std::string& path) {
  const std::string why = base::why_not_writable(path);
  if (!why.empty()) throw BadInput(fmt::format("{} {}: {}", option, path, why));
}

}  // namespace lockstep::app
