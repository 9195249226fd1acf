#include <fmt/format.h>
#include <lockstep/errors.h>

#include <nlohmann/json.hpp>

#include "app/train/job.h"
#include "app/train/progress.h"
#include "base/environment.h"
#include "control/device_choice.h"

namespace lockstep::app {
namespace {

// Not all shards are replayed even if all goes well: the first ones run eagerly, before the capture.
std::string spoken(const ShardCounts& shards) {
  return fmt::format("{} of {} shards of a worker replayed{}", with_commas(shards.replayed),
                     with_commas(shards.replayed + shards.eager),
                     shards.reason.empty() ? "" : "; not all: " + shards.reason);
}

void add_traffic(nlohmann::ordered_json& json, const TrainReport& report) {
  if (!report.codec.empty()) json["codec"] = report.codec;
  if (report.traffic.bytes) json["bytes_moved_per_step"] = *report.traffic.bytes;
  json["times_ring"] = nullptr;
}

std::string spoken_traffic(const TrainArguments& arguments, const TrainReport& report) {
  const std::string traffic =
      spoken(report.traffic, {report.result.shards, report.workers, arguments.local.enabled()});
  return report.codec.empty() || traffic.empty() ? traffic : report.codec + ": " + traffic;
}

nlohmann::ordered_json to_json(const std::optional<ShardCost>& cost) {
  if (!cost) return nullptr;
  return {{"fewest_shards", cost->fewest.shards},
          {"passes_ms", cost->now_ms},
          {"passes_ms_of_fewest", cost->fewest_ms}};
}

nlohmann::ordered_json to_json(const std::optional<NoiseScale>& scale) {
  if (!scale || !scale->measured) return nullptr;
  nlohmann::ordered_json json = {{"noise", scale->noise}, {"signal", scale->signal}};
  json["critical_batch"] = nullptr;
  if (const auto critical = scale->critical_batch()) json["critical_batch"] = *critical;
  return json;
}

void add_loss(nlohmann::ordered_json& json, const TrainingResult& result) {
  json["final_loss"] = nullptr;
  if (result.final_loss) json["final_loss"] = *result.final_loss;
  json["skipped_steps"] = result.skipped_steps;
  if (result.dropped > 0) json["dropped_gradients"] = result.dropped;
  json["loss_scale"] = nullptr;
  if (result.loss_scale) json["loss_scale"] = *result.loss_scale;
  json["noise_scale"] = to_json(result.noise_scale);
}

}  // namespace

std::string to_json(const TrainArguments& arguments, const TrainReport& report) {
  const TrainingResult& result = report.result;
  nlohmann::ordered_json json;
  json["workers"] = report.workers;
  json["engine"] = report.engine;
  json["device"] = control::name(*arguments.device);
  json["model"] = name(arguments.model);
  json["data"] = arguments.data;
  json["parameters"] = report.parameters;
  json["training_samples"] = report.training_samples;
  json["global_batch"] = arguments.global_batch;
  json["shards"] = result.shards;
  json["threads"] = arguments.threads;
  json["onednn"] = arguments.onednn == Switch::kOn;
  json["flush_denormal"] = arguments.flush_denormal == Switch::kOn;
  json["deterministic"] = arguments.deterministic == Switch::kOn;
  json["precision"] = name(arguments.precision);
  json["seed"] = arguments.seed;
  if (arguments.local.enabled()) json["local_steps"] = to_string(arguments.local);
  json["first_step"] = result.first_step;
  json["steps"] = result.steps;
  json["stopped"] = result.stopped;
  add_loss(json, result);
  json["test_accuracy"] = nullptr;
  json["test_loss"] = nullptr;
  if (result.evaluation) {
    json["test_accuracy"] = result.evaluation->accuracy;
    json["test_loss"] = result.evaluation->loss;
  }
  json["binding"] = base::environment("LOCKSTEP_BINDING").value_or("");
  json["seconds"] = result.seconds;
  json["samples_per_second"] = result.samples_per_second;
  json["speedup_over_one_worker"] = nullptr;
  if (report.speedup_over_one_worker)
    json["speedup_over_one_worker"] = *report.speedup_over_one_worker;
  json["step_ms"] = {{"p50", result.step_ms_p50}, {"p95", result.step_ms_p95}};
  json["exposed_comm_ms"] = {{"p50", result.exposed_comm_ms_p50}};
  json["bytes_moved_per_step"] = nullptr;
  add_traffic(json, report);
  if (report.traffic.times_ring) json["times_ring"] = *report.traffic.times_ring;
  json["shard_cost"] = to_json(report.shard_cost);
  json["graph_shards"] = nullptr;
  json["eager_shards"] = nullptr;
  json["eager_reason"] = nullptr;
  if (arguments.on(DeviceKind::kCuda)) {
    json["graph_shards"] = result.shard_counts.replayed;
    json["eager_shards"] = result.shard_counts.eager;
    json["eager_reason"] = result.shard_counts.reason;
  }
  json["memory_mb"] = static_cast<double>(result.memory_bytes) / 1e6;
  json["memory_mb_per_worker"] = static_cast<double>(result.memory_bytes) / 1e6 / report.workers;
  json["replicas_identical"] = result.replicas_identical;
  json["weights_sha256"] = result.weights_sha256;
  json["verified_steps"] = nullptr;
  if (!arguments.verify.empty()) json["verified_steps"] = result.verified;
  json["checkpoint"] = nullptr;
  if (!result.checkpoint.empty()) json["checkpoint"] = result.checkpoint;
  // A path may hold any bytes.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void check_verified(const TrainArguments& arguments, const TrainReport& report) {
  const std::int64_t next = report.result.first_step + report.result.verified;
  if (arguments.until < next) return;
  throw BadInput(fmt::format(
      "--until {}: steps {} to {} were not compared, because {} or the job ends before them",
      arguments.until, next, arguments.until, arguments.verify));
}

namespace {

std::string heading(const TrainArguments& arguments, const TrainingResult& result) {
  if (!arguments.verify.empty()) {
    return fmt::format("\nVerified {} steps: all weights are those of {}\n",
                       with_commas(result.verified), arguments.verify);
  }
  return fmt::format("\n{} after {} steps\n", result.stopped ? "Stopped" : "Trained",
                     with_commas(result.steps));
}

}  // namespace

std::string summary(const TrainArguments& arguments, const TrainReport& report) {
  const TrainingResult& result = report.result;
  std::string text = heading(arguments, result);
  const auto row = [&](const char* name, const std::string& value) {
    text += fmt::format("  {:<14}{}\n", name, value);
  };
  if (result.evaluation) {
    row("test accuracy", fmt::format("{:.2f} %  (test loss {:.4f})",
                                     100 * result.evaluation->accuracy, result.evaluation->loss));
  }
  if (result.final_loss) row("training loss", fmt::format("{:.4f}", *result.final_loss));
  if (result.loss_scale) {
    row("loss scale",
        fmt::format("{:g}, {} step{} skipped", *result.loss_scale,
                    with_commas(result.skipped_steps), result.skipped_steps == 1 ? "" : "s"));
  }
  if (result.noise_scale)
    row("noise scale", to_string(*result.noise_scale, arguments.global_batch));
  row("time", fmt::format("{} in {} steps", spoken_time(result.seconds),
                          with_commas(result.steps - result.first_step)));
  row("speed",
      fmt::format("{} samples/s on {} worker{}{}",
                  with_commas(static_cast<std::int64_t>(result.samples_per_second)), report.workers,
                  report.workers == 1 ? "" : "s",
                  report.speedup_over_one_worker
                      ? fmt::format(", {:.2f} times one worker", *report.speedup_over_one_worker)
                      : ""));
  row("step",
      fmt::format("{:.1f} ms (95 % below {:.1f} ms), {:.1f} ms of it waiting for other workers",
                  result.step_ms_p50, result.step_ms_p95, result.exposed_comm_ms_p50));
  const std::string shards =
      report.shard_cost ? spoken(*report.shard_cost, result.step_ms_p50) : "";
  if (!shards.empty()) row("shards", shards);
  if (arguments.local.enabled())
    row(arguments.local.asynchronous ? "rounds" : "local steps", to_string(arguments.local));
  if (result.dropped > 0)
    row("dropped", fmt::format("{:.1f} % of the gradients", result.dropped * 100));
  const std::string traffic = spoken_traffic(arguments, report);
  if (!traffic.empty()) row("traffic", traffic);
  const std::string binding = base::environment("LOCKSTEP_BINDING").value_or("");
  if (binding.find("bound to") != std::string::npos) row("workers", binding);
  if (arguments.on(DeviceKind::kCuda)) row("graphs", spoken(result.shard_counts));
  const double megabytes = static_cast<double>(result.memory_bytes) / 1e6;
  row("memory", fmt::format("{:.0f} MB, {:.0f} for each worker (proportional set size)", megabytes,
                            megabytes / report.workers));
  row("replicas",
      fmt::format("{}, sha256 {}…", result.replicas_identical ? "identical" : "NOT IDENTICAL",
                  result.weights_sha256.substr(0, 16)));
  if (!result.checkpoint.empty()) {
    row("checkpoint", result.stopped ? fmt::format("{} (go on with --resume {})", result.checkpoint,
                                                   *arguments.checkpoint)
                                     : result.checkpoint);
  }
  for (const auto& [name, file] :
       {std::pair{"hashes", arguments.hashes}, {"report", arguments.report}})
    if (!file.empty()) row(name, file);
  return text;
}

std::string how_to_go_on(const TrainArguments& arguments, const TrainReport& report) {
  std::string next = "nothing was kept; with --checkpoint DIR it could go on";
  if (!report.result.checkpoint.empty()) {
    next = "go on with the same command";
    if (!arguments.resume) next += " and --resume " + *arguments.checkpoint;
  }
  return fmt::format("lockstep: stopped after {} of {} steps; {}\n",
                     with_commas(report.result.steps), with_commas(report.total_steps), next);
}

}  // namespace lockstep::app
