#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/plot.h"
#include "bench/rounds.h"
#include "bench/step_cuda.h"

namespace lockstep::bench {
namespace {

struct CudaRow {
  const CudaStepResult* result = nullptr;
  Summary ms;
  std::string base;             // empty: it has none
  double ratio = 0;             // of the medians; 0: the base was not measured
  double fastest = 0;           // median of the fastest run
  double ratio_of_fastest = 0;  // the ratio of the fastest runs
};

std::vector<CudaRow> cuda_rows(const CudaStepReport& report) {
  std::vector<CudaRow> rows;
  for (const CudaStepResult& result : report.results) {
    const CudaSystem* system = cuda_system(result.system);
    CudaRow row{&result, summarise(result.step_ms), system == nullptr ? "" : system->base};
    row.fastest = *std::min_element(result.run_ms.begin(), result.run_ms.end());
    rows.push_back(row);
  }
  for (CudaRow& row : rows) {
    for (const CudaRow& other : rows) {
      if (other.result->system != row.base) continue;
      row.ratio = row.ms.p50 / other.ms.p50;
      row.ratio_of_fastest = row.fastest / other.fastest;
    }
  }
  return rows;
}

bool of_text(const StepArguments& arguments) {
  return arguments.model == "gpt";
}

// Samples, or tokens of text.
double items_per_second(const StepArguments& arguments, double step_ms) {
  const std::int64_t each = of_text(arguments) ? arguments.context : 1;
  return 1000.0 * static_cast<double>(arguments.batch * each) * arguments.workers / step_ms;
}

// Describes the arithmetic: PyTorch's defaults, the same on both sides.
std::string spoken_precision(const StepArguments& arguments) {
  if (arguments.precision == "float32") return "float32, TF32 in convolutions only";
  return arguments.precision == "bf16" ? "bf16 by autocast" : "bf16, our weights held so";
}

std::string spoken_model(const StepArguments& arguments) {
  if (!of_text(arguments)) return arguments.model;
  return fmt::format("{} ({}, context {})", arguments.model, arguments.gpt_size, arguments.context);
}

std::string cuda_title(const StepArguments& arguments) {
  return fmt::format("training steps of {} on cuda, {} worker{}, batch {} each, {}, {}",
                     spoken_model(arguments), arguments.workers, arguments.workers == 1 ? "" : "s",
                     arguments.batch, arguments.optimizer, spoken_precision(arguments));
}

std::string count_text(const std::optional<std::int64_t>& count) {
  return count ? std::to_string(*count) : "";
}

nlohmann::ordered_json count_json(const std::optional<std::int64_t>& count) {
  return count ? nlohmann::ordered_json(*count) : nlohmann::ordered_json(nullptr);
}

void take_count(const nlohmann::json& line, const char* name, std::optional<std::int64_t>& count) {
  if (line.contains(name) && !line.at(name).is_null()) count = line.at(name).get<std::int64_t>();
}

// Ratios with two more digits than the columns have room for.
std::string spoken_ratios(const std::vector<CudaRow>& rows) {
  std::string text;
  for (const CudaRow& row : rows) {
    if (row.ratio == 0) continue;
    text += fmt::format("{} takes {:.3f} times the time of {}", row.result->system, row.ratio,
                        row.base);
    text += row.result->run_ms.size() > 1
                ? fmt::format(", the fastest turns {:.3f}\n", row.ratio_of_fastest)
                : "\n";
  }
  return text.empty() ? "" : text + "\n";
}

// The first few shards always run without a graph: it is captured after them.
std::string spoken_eager(const std::vector<CudaRow>& rows) {
  std::string text;
  for (const CudaRow& row : rows) {
    const CudaStepResult& result = *row.result;
    if (result.eager_shards.value_or(0) == 0) continue;
    text += fmt::format("{} ran {} of {} shards eagerly{}{}\n", result.system, *result.eager_shards,
                        *result.eager_shards + result.graph_shards.value_or(0),
                        result.eager_reason.empty() ? "" : ": ", result.eager_reason);
  }
  return text.empty() ? "" : text + "\n";
}

}  // namespace

void CudaStepResult::add(const std::vector<std::string>& lines) {
  if (lines.empty()) throw BadInput("it printed no times");
  const auto before = static_cast<std::ptrdiff_t>(step_ms.size());
  for (const std::string& line : lines) {
    const auto json = nlohmann::json::parse(line);
    const auto times = json.at("step_ms").get<std::vector<double>>();
    if (times.empty()) throw BadInput("it timed no step");
    step_ms.insert(step_ms.end(), times.begin(), times.end());
    take_count(json, "buckets", buckets);
    take_count(json, "buckets_before_end", buckets_before_end);
    take_count(json, "graph_shards", graph_shards);
    take_count(json, "eager_shards", eager_shards);
    eager_reason = json.value("eager_reason", eager_reason);
  }
  run_ms.push_back(summarise({step_ms.begin() + before, step_ms.end()}).p50);
}

std::string as_json(const CudaStepReport& report) {
  const StepArguments& arguments = report.arguments;
  auto array = nlohmann::ordered_json::array();
  for (const CudaRow& row : cuda_rows(report)) {
    nlohmann::ordered_json object = {
        {"system", row.result->system},
        {"device", "cuda"},
        {"workers", arguments.workers},
        {"model", arguments.model},
        {"batch", arguments.batch},
        {"optimizer", arguments.optimizer},
        {"precision", arguments.precision},
        {"bucket_bytes", arguments.bucket_bytes},
        {"step_ms_p50", row.ms.p50},
        {"step_ms_q1", row.ms.q1},
        {"step_ms_q3", row.ms.q3},
        {"step_ms_p99", row.ms.p99},
        {"steps", row.ms.samples},
        {"turns_ms_p50", row.result->run_ms},
        {of_text(arguments) ? "tokens_per_second" : "samples_per_second",
         items_per_second(arguments, row.ms.p50)},
        {"ratio", nullptr},
        {"ratio_of_fastest_turns", nullptr},
        {"ratio_base", nullptr},
        {"buckets", count_json(row.result->buckets)},
        {"buckets_before_end", count_json(row.result->buckets_before_end)},
        {"graph_shards", count_json(row.result->graph_shards)},
        {"eager_shards", count_json(row.result->eager_shards)},
        {"eager_reason", row.result->eager_reason},
        {"settings", row.result->settings}};
    if (of_text(arguments)) {
      object["gpt_size"] = arguments.gpt_size;
      object["context"] = arguments.context;
    }
    if (!row.base.empty()) object["ratio_base"] = row.base;
    if (row.ratio > 0) {
      object["ratio"] = row.ratio;
      object["ratio_of_fastest_turns"] = row.ratio_of_fastest;
    }
    array.push_back(std::move(object));
  }
  return array.dump(2) + "\n";
}

std::string as_table(const CudaStepReport& report) {
  const StepArguments& arguments = report.arguments;
  const auto rows = cuda_rows(report);
  std::string text = fmt::format("{}; times in ms by the GPU's clock\n\n", cuda_title(arguments));
  text += fmt::format("{:<28} {:>8}  {:>20}  {:>8}  {:>8}  {:>9}  {:>7}  {:>6}  {:>6}\n", "system",
                      "p50", "quartiles", "p99", "fastest",
                      of_text(arguments) ? "tokens/s" : "samples/s", "buckets", "early", "graphs");
  for (const CudaRow& row : rows) {
    text += fmt::format(
        "{:<28} {:>8.3f}  {:>8.3f} to {:>8.3f}  {:>8.3f}  {:>8.3f}  {:>9.0f}  {:>7}  {:>6}  "
        "{:>6}\n",
        row.result->system, row.ms.p50, row.ms.q1, row.ms.q3, row.ms.p99, row.fastest,
        items_per_second(arguments, row.ms.p50), count_text(row.result->buckets),
        count_text(row.result->buckets_before_end), count_text(row.result->graph_shards));
  }
  text += "\n" + spoken_ratios(rows) + spoken_eager(rows);
  for (const auto& result : report.results)
    text += fmt::format("{:<28} {}\n", result.system, result.settings);
  return text + fmt::format("{:<28} {}\n", "all", spoken(allocator_settings()));
}

std::string as_plot(const CudaStepReport& report) {
  BarPlot plot;
  plot.title = cuda_title(report.arguments);
  plot.caption = "milliseconds a step: median, and quartiles; shorter is better";
  for (const CudaRow& row : cuda_rows(report)) {
    const CudaSystem* system = cuda_system(row.result->system);
    plot.bars.push_back(
        {row.result->system, row.ms.p50, row.ms.q1, row.ms.q3, system != nullptr && system->ours});
  }
  return draw(plot);
}

}  // namespace lockstep::bench
