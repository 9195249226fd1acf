#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/hosts_bench.h"
#include "bench/rounds.h"

namespace lockstep::bench {
namespace {

constexpr char kLeast[] = "least";

struct HostsRow {
  const HostsResult* result = nullptr;
  Summary time;
  std::vector<std::pair<std::string, double>> ratios;  // to each base that was measured
};

std::vector<HostsRow> rows_of(const HostsSection& section) {
  std::vector<HostsRow> rows;
  std::vector<std::pair<std::string, double>> bases;
  for (const HostsResult& result : section.results) {
    rows.push_back({&result, summarise(result.samples), {}});
    if (std::find(section.bases.begin(), section.bases.end(), result.system) != section.bases.end())
      bases.emplace_back(result.system, rows.back().time.p50);
  }
  if (section.least > 0) bases.emplace_back(kLeast, section.least);
  for (HostsRow& row : rows) {
    for (const auto& [name, time] : bases) row.ratios.emplace_back(name, row.time.p50 / time);
  }
  return rows;
}

std::string time_text(double value) {
  return fmt::format("{:.{}f}", value, value >= 100 ? 0 : value >= 10 ? 1 : 2);
}

}  // namespace

double least_time(std::size_t bytes, int hosts, double rate) {
  return static_cast<double>(bytes) * 2 * (hosts - 1) / hosts * 8 / rate * 1e6;
}

void HostsResult::add(const std::vector<std::string>& lines) {
  if (lines.empty()) throw BadInput("it printed no times");
  for (const std::string& line : lines) {
    const auto json = nlohmann::json::parse(line);
    const auto times = json.at(json.contains("us") ? "us" : "step_ms").get<std::vector<double>>();
    if (times.empty()) throw BadInput("it timed nothing");
    samples.insert(samples.end(), times.begin(), times.end());
  }
}

std::string as_json(const std::vector<HostsSection>& sections) {
  auto array = nlohmann::ordered_json::array();
  for (const HostsSection& section : sections) {
    for (const HostsRow& row : rows_of(section)) {
      nlohmann::ordered_json object = {{"section", section.name},
                                       {"title", section.title},
                                       {"system", row.result->system},
                                       {"unit", section.unit == "ms" ? "ms" : "us"},
                                       {"bytes", section.bytes},
                                       {"p50", row.time.p50},
                                       {"q1", row.time.q1},
                                       {"q3", row.time.q3},
                                       {"p99", row.time.p99},
                                       {"samples", row.time.samples}};
      auto ratios = nlohmann::ordered_json::object();
      for (const auto& [name, ratio] : row.ratios) ratios[name] = ratio;
      object["times_of"] = ratios;
      object["settings"] = row.result->settings;
      array.push_back(std::move(object));
    }
  }
  return array.dump(2) + "\n";
}

std::string as_table(const std::vector<HostsSection>& sections) {
  std::string text;
  for (const HostsSection& section : sections) {
    const auto rows = rows_of(section);
    text += fmt::format("{}; times in {}\n\n{:<22} {:>9}  {:>21}", section.title, section.unit,
                        "system", "p50", "quartiles");
    if (!rows.empty()) {
      for (const auto& [name, ratio] : rows.front().ratios)
        text += fmt::format("  {:>14}", "÷ " + name);
    }
    text += "\n";
    for (const HostsRow& row : rows) {
      text += fmt::format("{:<22} {:>9}  {:>9} to {:>8}", row.result->system,
                          time_text(row.time.p50), time_text(row.time.q1), time_text(row.time.q3));
      for (const auto& [name, ratio] : row.ratios) text += fmt::format("  {:>14.3f}", ratio);
      text += "\n";
    }
    if (section.least > 0)
      text += fmt::format("{:<22} {:>9}  computed: the bytes over the rate, without headers\n",
                          kLeast, time_text(section.least));
    text += "\n";
    for (const HostsRow& row : rows)
      text += fmt::format("  {:<20} {}\n", row.result->system, row.result->settings);
    text += "\n";
  }
  return text;
}

}  // namespace lockstep::bench
