#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "bench/plot.h"
#include "bench/rounds.h"
#include "bench/step.h"

namespace lockstep::bench {
namespace {

// The base of efficiency.
const char* base_of(const StepReport& report) {
  return report.shards > report.workers ? kPlainAccumulate : "plain";
}

struct StepRow {
  const StepResult* result = nullptr;
  Summary ms;
  double samples_per_second = 0;
  double efficiency = 0;  // 0: the base was not measured
  double of_barrier = 0;  // the same against plain-barrier
  double pss_mb = 0;
  double state_mb = 0;
};

// The median of a system; 0 if it was not measured.
double median_of(const std::vector<StepRow>& rows, const std::string& system) {
  for (const StepRow& row : rows) {
    if (row.result->system == system) return row.ms.p50;
  }
  return 0;
}

std::vector<StepRow> rows_of(const StepReport& report) {
  std::vector<StepRow> rows;
  for (const StepResult& result : report.results) {
    StepRow row{&result, summarise(result.step_ms)};
    row.samples_per_second =
        1000.0 * static_cast<double>(report.batch) * report.shards / row.ms.p50;
    row.pss_mb = summarise(result.pss_mb).p50;
    row.state_mb = summarise(result.state_mb).p50;
    rows.push_back(row);
  }
  const double base_ms = median_of(rows, base_of(report));
  const double barrier_ms = median_of(rows, kPlainBarrier);
  for (StepRow& row : rows) {
    row.efficiency = base_ms / row.ms.p50;
    row.of_barrier = barrier_ms / row.ms.p50;
  }
  return rows;
}

std::string title_of(const StepReport& report) {
  const std::string shards =
      report.shards > report.workers ? fmt::format("{} shards on ", report.shards) : "";
  return fmt::format("training steps of {}, {}{} worker{} of {} thread{}, batch {} each, {}",
                     report.model, shards, report.workers, report.workers == 1 ? "" : "s",
                     report.threads, report.threads == 1 ? "" : "s", report.batch,
                     report.optimizer);
}

// Two costs as ratios: hosting several shards compared with plain accumulation, and the divergence
// check. They have two more digits than a column of per cent.
std::string costs_of(const std::vector<StepRow>& rows) {
  std::string text;
  for (const StepRow& base : rows) {
    const bool unchecked = base.result->system.ends_with(kUnchecked);
    if (!unchecked && !base.result->system.starts_with("plain-accumulate")) continue;
    for (const StepRow& row : rows) {
      if (!row.result->system.ends_with("-fused")) continue;
      text += fmt::format("{} takes {:.3f} times the time of {}\n", row.result->system,
                          row.ms.p50 / base.ms.p50, base.result->system);
    }
  }
  return text.empty() ? "" : text + "\n";
}

// How much of what each of Lockstep's systems takes longer than workers that never talk is waiting
// for the slowest worker. One line; empty if it was not measured, or if there is nobody to wait for.
std::string waiting_of(const StepReport& report, const std::vector<StepRow>& rows) {
  const double plain = median_of(rows, "plain");
  const double barrier = median_of(rows, kPlainBarrier);
  if (plain == 0 || barrier == 0 || report.workers == 1) return "";
  const std::string measured =
      fmt::format("(plain-barrier takes {:.3f} times the time of plain)", barrier / plain);
  const double waiting = barrier - plain;
  if (waiting <= 0)
    return fmt::format("waiting for the slowest worker: none can be seen {}\n\n", measured);
  std::string gaps;
  for (const StepRow& row : rows) {
    if (!row.result->system.starts_with("lockstep")) continue;
    const double gap = row.ms.p50 - plain;
    const std::string part =
        gap > 0 ? fmt::format("{:.0f} % of {:.2f} ms", 100 * std::min(waiting / gap, 1.0), gap)
                : "no slower";
    gaps += fmt::format("{} {} {}",
                        gaps.empty() ? "; its part of what each takes more than plain:" : ";",
                        row.result->system, part);
  }
  return fmt::format("waiting for the slowest worker: {:.2f} ms a step {}{}\n\n", waiting, measured,
                     gaps);
}

std::string percent(double share) {
  return share > 0 ? fmt::format("{:.0f} %", 100 * share) : "";
}

nlohmann::json number_or_null(double number) {
  return number > 0 ? nlohmann::json(number) : nlohmann::json(nullptr);
}

}  // namespace

void StepResult::add(const std::vector<std::string>& lines) {
  if (lines.empty()) throw BadInput("it printed no times");
  std::set<int> ranks;
  double pss = 0;
  double state = 0;
  for (const std::string& line : lines) {
    const auto json = nlohmann::json::parse(line);
    const auto times = json.at("step_ms").get<std::vector<double>>();
    if (times.empty()) throw BadInput("it timed no step");
    step_ms.insert(step_ms.end(), times.begin(), times.end());
    if (!ranks.insert(json.at("rank").get<int>()).second)
      continue;  // the rest is on its first line
    pss += json.at("pss_mb").get<double>();
    state += json.at("state_mb").get<double>();
  }
  pss_mb.push_back(pss);
  state_mb.push_back(state);
}

namespace {

void add_json(const StepReport& report, nlohmann::ordered_json& array) {
  for (const StepRow& row : rows_of(report)) {
    nlohmann::ordered_json object = {{"system", row.result->system},
                                     {"workers", report.workers},
                                     {"shards", report.shards},
                                     {"threads", report.threads},
                                     {"model", report.model},
                                     {"batch", report.batch},
                                     {"optimizer", report.optimizer},
                                     {"bucket_bytes", report.bucket_bytes},
                                     {"step_ms_p50", row.ms.p50},
                                     {"step_ms_p99", row.ms.p99},
                                     {"step_ms_q1", row.ms.q1},
                                     {"step_ms_q3", row.ms.q3},
                                     {"steps", row.ms.samples},
                                     {"samples_per_second", row.samples_per_second},
                                     {"efficiency", number_or_null(row.efficiency)},
                                     {"efficiency_base", base_of(report)},
                                     {"of_plain_barrier", number_or_null(row.of_barrier)},
                                     {"pss_mb", row.pss_mb},
                                     {"state_mb", row.state_mb},
                                     {"settings", row.result->settings}};
    array.push_back(std::move(object));
  }
}

std::string table_of(const StepReport& report) {
  std::string text =
      fmt::format("{}; times in ms, memory of all workers together in MB\n\n", title_of(report));
  const auto rows = rows_of(report);
  const std::string base = fmt::format("of {}", base_of(report));
  const bool barrier = median_of(rows, kPlainBarrier) > 0;
  text += fmt::format("{:<22} {:>8}  {:>18}  {:>8}  {:>9}  {:>19}{}  {:>7}  {:>7}\n", "system",
                      "p50", "quartiles", "p99", "samples/s", base,
                      barrier ? "  of plain-barrier" : "", "memory", "state");
  for (const StepRow& row : rows) {
    text += fmt::format(
        "{:<22} {:>8.2f}  {:>7.2f} to {:>7.2f}  {:>8.2f}  {:>9.0f}  {:>19}{}  {:>7.0f}  {:>7.1f}\n",
        row.result->system, row.ms.p50, row.ms.q1, row.ms.q3, row.ms.p99, row.samples_per_second,
        percent(row.efficiency), barrier ? fmt::format("  {:>16}", percent(row.of_barrier)) : "",
        row.pss_mb, row.state_mb);
  }
  return text + "\n" + waiting_of(report, rows) + costs_of(rows);
}

std::string bars_of(const StepReport& report) {
  BarPlot plot;
  plot.title = title_of(report);
  plot.caption = "milliseconds a step: median, and quartiles; shorter is better";
  for (const StepRow& row : rows_of(report))
    plot.bars.push_back({row.result->system, row.ms.p50, row.ms.q1, row.ms.q3,
                         row.result->system.starts_with("lockstep")});
  return draw(plot);
}

// In the order of their workers, then of their threads.
std::vector<StepReport> sorted(std::vector<StepReport> rows) {
  std::stable_sort(rows.begin(), rows.end(), [](const StepReport& a, const StepReport& b) {
    return std::pair(a.workers, a.threads) < std::pair(b.workers, b.threads);
  });
  return rows;
}

std::string lines_of(const std::vector<StepReport>& reports) {
  PlacePlot plot;
  plot.title = fmt::format("training steps of {}, batch {} each, {}", reports.front().model,
                           reports.front().batch, reports.front().optimizer);
  plot.caption = "samples per second by workers × threads of each: medians; higher is better";
  for (const StepReport& report : sorted(reports)) {
    const auto place = static_cast<double>(plot.places.size());
    plot.places.push_back(fmt::format("{} × {}", report.workers, report.threads));
    for (const StepRow& row : rows_of(report)) {
      auto line = std::find_if(plot.lines.begin(), plot.lines.end(),
                               [&](const auto& one) { return one.name == row.result->system; });
      if (line == plot.lines.end()) line = plot.lines.insert(line, {row.result->system, {}, false});
      line->points.push_back({place, row.samples_per_second});
    }
  }
  return draw(plot);
}

}  // namespace

std::string as_json(const std::vector<StepReport>& rows) {
  auto array = nlohmann::ordered_json::array();
  for (const StepReport& report : rows) add_json(report, array);
  return array.dump(2) + "\n";
}

std::string as_table(const std::vector<StepReport>& rows) {
  std::string text;
  std::string settings;
  std::set<std::string> told;
  for (const StepReport& report : rows) {
    text += table_of(report);
    for (const auto& result : report.results) {
      if (told.insert(result.system).second)
        settings += fmt::format("{:<22} {}\n", result.system, result.settings);
    }
  }
  return text + settings + fmt::format("{:<22} {}\n", "all", spoken(allocator_settings()));
}

std::string as_plot(const std::vector<StepReport>& rows) {
  return rows.size() > 1 ? lines_of(rows) : bars_of(rows.front());
}

}  // namespace lockstep::bench
