#include "torch/train/job.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include "torch/replica/replicated.h"
#include "torch/train/arithmetic.h"

namespace lockstep::train {

void check_parts(const TrainerParts& parts) {
  if (!parts.optimizer || !parts.train || !parts.module || !parts.loss)
    throw BadInput("a Trainer wants a module, an optimizer, training data and a loss");
}

void check_options(const TrainerOptions& options, int workers) {
  if ((options.steps > 0) == (options.epochs > 0))
    throw BadInput("a Trainer wants either steps or epochs");
  if (options.global_batch < workers) {
    throw BadInput(
        fmt::format("a global batch of {} is smaller than the {} workers: each needs a "
                    "sample of it",
                    options.global_batch, workers));
  }
  if (options.shards < workers) {
    throw BadInput(
        fmt::format("{} shards cannot be hosted by {} workers: use at most one worker for "
                    "each shard",
                    options.shards, workers));
  }
  if (options.global_batch % options.shards != 0) {
    throw BadInput(
        fmt::format("a global batch of {} cannot be divided among {} shards: choose a "
                    "multiple of {}",
                    options.global_batch, options.shards, options.shards));
  }
}

plan::DataOptions data_options(const TrainerParts& parts, const TrainerOptions& options) {
  plan::DataOptions data;
  data.samples = parts.train->size();
  data.global_batch = options.global_batch;
  data.shards = options.shards;
  data.seed = options.seed;
  return data;
}

Job job_of(const TrainerParts& parts, const TrainerOptions& options) {
  Job job = options.job;
  for (const auto& [name, value] : arithmetic_in_use(parts.model.state()->device()))
    job[name] = value;
  job["global_batch"] = std::to_string(options.global_batch);
  job["shards"] = std::to_string(options.shards);
  job["buffers"] = options.buffers == ShardBufferRule::kMean ? "mean" : "first shard";
  job["seed"] = std::to_string(options.seed);
  job["samples"] = std::to_string(parts.train->size());
  job["optimizer"] = parts.optimizer->name();
  job["clip_norm"] = fmt::format("{}", parts.optimizer->clip_norm());
  if (parts.weight) job["weight"] = "by function";
  return job;
}

}  // namespace lockstep::train
