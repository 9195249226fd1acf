#include <fmt/format.h>
#include <lockstep/errors.h>

#include <nlohmann/json.hpp>

#include "bench/allreduce.h"
#include "bench/plot.h"

namespace lockstep::bench {
namespace {

// One system at one size.
struct Row {
  const AllreduceResult* result = nullptr;
  std::size_t bytes = 0;
  Summary us;
  double algbw = 0;
  double busbw = 0;
  double of_limit = 0;  // 0: no limit was measured
  double of_dirty = 0;  // … of operands that are dirty in other cores' caches
};

bool is_limit(const std::string& system) {
  return system == kLimit || system == kLimitDirty;
}

std::vector<Row> rows_of(const AllreduceReport& report) {
  std::map<std::size_t, std::vector<Row>> by_size;
  std::map<std::string, std::map<std::size_t, double>> limits;  // by system and bytes
  for (const auto& result : report.results) {
    for (const auto& [bytes, samples] : result.samples) {
      Row row{&result, bytes, summarise(samples)};
      row.algbw = algorithm_bandwidth(bytes, row.us.p50);
      row.busbw = bus_bandwidth(row.algbw, report.workers);
      if (is_limit(result.system)) limits[result.system][bytes] = row.us.p50;
      by_size[bytes].push_back(row);
    }
  }
  const auto part_of = [&](const char* limit, const Row& row) {
    const auto& times = limits[limit];
    const auto found = times.find(row.bytes);
    return found == times.end() ? 0 : found->second / row.us.p50;
  };
  std::vector<Row> rows;
  for (auto& [bytes, group] : by_size) {
    for (Row& row : group) {
      row.of_limit = part_of(kLimit, row);
      row.of_dirty = part_of(kLimitDirty, row);
      rows.push_back(row);
    }
  }
  return rows;
}

std::string number(double value) {
  if (value >= 100) return fmt::format("{:.0f}", value);
  return fmt::format("{:.{}f}", value, value >= 10 ? 1 : 2);
}

// What the order of the tree costs, compared with the order of ranks, at every size where both were
// measured.
std::string cost_of_order(const std::vector<Row>& rows) {
  std::map<std::size_t, double> ranks;
  for (const Row& row : rows) {
    if (row.result->system == kInPlaceRanks) ranks[row.bytes] = row.us.p50;
  }
  std::string text;
  for (const Row& row : rows) {
    if (row.result->system != kInPlaceTree || !ranks.contains(row.bytes)) continue;
    text += fmt::format("{}{:.3f} at {}", text.empty() ? "" : ", ", row.us.p50 / ranks[row.bytes],
                        spoken_size(row.bytes));
  }
  if (text.empty()) return text;
  return fmt::format("{} takes this many times the time of {}: {}\n\n", kInPlaceTree, kInPlaceRanks,
                     text);
}

}  // namespace

void AllreduceResult::add(const std::vector<std::string>& lines) {
  if (lines.empty()) throw BadInput("it printed no times");
  for (const std::string& line : lines) {
    const auto json = nlohmann::json::parse(line);
    const auto times = json.at("us").get<std::vector<double>>();
    if (times.empty()) throw BadInput("it timed no all-reduce");
    auto& all = samples[json.at("bytes").get<std::size_t>()];
    all.insert(all.end(), times.begin(), times.end());
  }
}

std::string as_json(const AllreduceReport& report) {
  auto array = nlohmann::ordered_json::array();
  for (const Row& row : rows_of(report)) {
    nlohmann::ordered_json object = {{"system", row.result->system},
                                     {"workers", report.workers},
                                     {"bytes", row.bytes},
                                     {"p50_us", row.us.p50},
                                     {"p99_us", row.us.p99},
                                     {"q1_us", row.us.q1},
                                     {"q3_us", row.us.q3},
                                     {"samples", row.us.samples},
                                     {"algbw_GBps", row.algbw},
                                     {"busbw_GBps", row.busbw},
                                     {"of_limit", nullptr},
                                     {"of_dirty", nullptr},
                                     {"settings", row.result->settings}};
    if (row.of_limit > 0) object["of_limit"] = row.of_limit;
    if (row.of_dirty > 0) object["of_dirty"] = row.of_dirty;
    array.push_back(std::move(object));
  }
  return array.dump(2) + "\n";
}

std::string as_table(const AllreduceReport& report) {
  std::string text = fmt::format(
      "all-reduce of float32, {} workers; times in µs, bandwidths in GB/s\n\n"
      "{:>8}  {:<14} {:>9}  {:>21}  {:>9}  {:>7}  {:>7}  {:>8}  {:>8}\n",
      report.workers, "size", "system", "p50", "quartiles", "p99", "algbw", "busbw", "of limit",
      "of dirty");
  std::size_t last = 0;
  const auto rows = rows_of(report);
  for (const Row& row : rows) {
    if (last != 0 && row.bytes != last) text += "\n";
    const std::string size = row.bytes == last ? "" : spoken_size(row.bytes);
    last = row.bytes;
    text += fmt::format(
        "{:>8}  {:<14} {:>9}  {:>9} to {:>8}  {:>9}  {:>7}  {:>7}  {:>6.0f} %  {:>6.0f} %\n", size,
        row.result->system, number(row.us.p50), number(row.us.q1), number(row.us.q3),
        number(row.us.p99), number(row.algbw), number(row.busbw), 100 * row.of_limit,
        100 * row.of_dirty);
  }
  text += "\n" + cost_of_order(rows);
  for (const auto& result : report.results)
    text += fmt::format("{:<14} {}\n", result.system, result.settings);
  return text + fmt::format("{:<14} {}\n", "all", spoken(allocator_settings()));
}

std::string as_plot(const AllreduceReport& report) {
  LinePlot plot;
  plot.title = fmt::format("all-reduce of float32, {} workers", report.workers);
  plot.caption = "bytes of the buffer; algorithm bandwidth in GB/s (median), higher is better";
  std::map<std::string, LinePlot::Line> lines;
  for (const Row& row : rows_of(report))
    lines[row.result->system].points.push_back({static_cast<double>(row.bytes), row.algbw});
  for (const auto& result : report.results) {
    LinePlot::Line& line = lines[result.system];
    line.name = result.system;
    line.dashed = is_limit(result.system);
    plot.lines.push_back(line);
  }
  return draw(plot);
}

}  // namespace lockstep::bench
