#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "bench/faults_bench.h"
#include "bench/plot.h"
#include "bench/rounds.h"

namespace lockstep::bench {
namespace {

// One line of the report.
struct FaultsRow {
  std::string name;  // for programs
  std::string what;  // for people
  std::string unit;
  Summary value;
  std::string wanted;            // what was aimed at; empty: nothing
  std::optional<double> of_one;  // divided by the row that it is compared with
};

// From the kill, less one step of the survivors: what is left is noticing, regrouping and settling.
std::vector<double> beyond_a_step(const KillTimes& kills) {
  if (kills.step.empty()) return {};
  const double step = summarise(kills.step).p50;
  std::vector<double> all;
  for (const double time : kills.committed) all.push_back(time - step);
  return all;
}

void add_kills(const KillTimes& kills, std::vector<FaultsRow>& rows) {
  const auto add = [&](const char* name, const char* what, const std::vector<double>& samples,
                       const char* wanted) {
    if (!samples.empty()) rows.push_back({name, what, "ms", summarise(samples), wanted, {}});
  };
  add("noticed_ms", "kill to noticed by the launcher", kills.noticed, "< 10");
  add("committed_ms", "kill to the next step of the survivors", kills.committed, "");
  add("survivors_step_ms", "a step of the survivors", kills.step, "");
  add("beyond_a_step_ms", "kill to that step, less such a step", beyond_a_step(kills),
      "p50 <= 100, p99 <= 1000");
  add("rejoined_ms", "kill to the first step with a replacement", kills.rejoined, "");
}

std::vector<FaultsRow> rows_of(const FaultsReport& report) {
  std::vector<FaultsRow> rows;
  add_kills(report.kills, rows);
  if (!report.calm.empty()) {
    const Summary calm = summarise(report.calm);
    const Summary disturbed = summarise(report.disturbed);
    rows.push_back({"calm", "undisturbed", "samples/s", calm, "", {}});
    rows.push_back({"disturbed", "one kill a minute", "samples/s", disturbed, ">= 0.97",
                    disturbed.p50 / calm.p50});
  }
  for (std::size_t i = 0; i < report.costs.size(); ++i) {
    const StepResult& cost = report.costs[i];
    FaultsRow row{cost.system, "a step, " + cost.system, "ms", summarise(cost.step_ms), "", {}};
    // With restarts; the one before is the same without.
    if (i > 0 && cost.system.starts_with(report.costs[i - 1].system)) {
      row.of_one = row.value.p50 / rows.back().value.p50;
      row.wanted = cost.system.starts_with("adamw") ? "<= 1.015" : "<= 1.01";
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string title_of(const FaultsReport& report) {
  return fmt::format("faults, {} workers, batch {} each", report.workers, report.batch);
}

}  // namespace

std::string as_json(const FaultsReport& report) {
  auto array = nlohmann::ordered_json::array();
  for (const FaultsRow& row : rows_of(report)) {
    nlohmann::ordered_json object = {{"name", row.name},      {"what", row.what},
                                     {"unit", row.unit},      {"workers", report.workers},
                                     {"batch", report.batch}, {"p50", row.value.p50},
                                     {"q1", row.value.q1},    {"q3", row.value.q3},
                                     {"p99", row.value.p99},  {"samples", row.value.samples},
                                     {"wanted", row.wanted}};
    object["ratio"] = row.of_one ? nlohmann::json(*row.of_one) : nlohmann::json(nullptr);
    array.push_back(std::move(object));
  }
  return array.dump(2) + "\n";
}

std::string as_table(const FaultsReport& report) {
  std::string text =
      fmt::format("{}\n\n{:<42} {:>10} {:>9} {:>21} {:>9} {:>7}  {:<7} {}\n", title_of(report), "",
                  "unit", "p50", "quartiles", "p99", "samples", "ratio", "wanted");
  for (const FaultsRow& row : rows_of(report)) {
    text += fmt::format("{:<42} {:>10} {:>9.2f} {:>9.2f} to {:>8.2f} {:>9.2f} {:>7}  {:<7} {}\n",
                        row.what, row.unit, row.value.p50, row.value.q1, row.value.q3,
                        row.value.p99, row.value.samples,
                        row.of_one ? fmt::format("{:.3f}", *row.of_one) : "", row.wanted);
  }
  return text;
}

// The times from a kill on; of other rows the table says enough.
std::string as_plot(const FaultsReport& report) {
  BarPlot plot{.title = title_of(report),
               .caption = "ms; bars: medians; whiskers: first quartile to 99th percentile",
               .bars = {}};
  std::vector<FaultsRow> rows;
  add_kills(report.kills, rows);
  for (const FaultsRow& row : rows) {
    plot.bars.push_back(
        {row.what, row.value.p50, row.value.q1, row.value.p99, row.name == "beyond_a_step_ms"});
  }
  return draw(plot);
}

}  // namespace lockstep::bench
