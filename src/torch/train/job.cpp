#include "torch/train/job.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <string>

#include "base/environment.h"
#include "base/hash.h"
#include "torch/optim/impl.h"
#include "torch/replica/agreement.h"
#include "torch/replica/replicated.h"
#include "torch/train/arithmetic.h"

namespace lockstep::train {

void check_parts(const TrainerParts& parts) {
  if (!parts.optimizer || !parts.train || !parts.module || !parts.loss)
    throw BadInput("a Trainer wants a module, an optimizer, training data and a loss");
  if (optim::inside(*parts.optimizer).trained.model != replica::Inside::of(parts.model))
    throw BadInput("the Trainer's optimizer was made for another model than its own");
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

bool resumes(const TrainerOptions& options) {
  return options.existing_checkpoint == ExistingCheckpoint::kResume &&
         !options.checkpoint_directory.empty();
}

void agree_on_checkpoints(Comm& comm, const TrainerOptions& options) {
  const char* const names[] = {"refuse", "resume", "replace"};
  replica::agree(
      comm,
      {{"checkpoint_directory", options.checkpoint_directory.empty() ? "none" : "set"},
       {"existing_checkpoint", names[static_cast<std::size_t>(options.existing_checkpoint)]},
       {"verify_log", options.verify_log.empty() ? "none" : "set"}},
      {"workers run different jobs", "start all of them with the same options"});
}

int saved_shards(Comm& comm, const std::string& directory) {
  constexpr std::int64_t kMost = 1 << 24;
  const std::string saved = checkpoint_property(comm, directory, "shards");
  if (saved.empty()) return 0;
  const auto shards = base::parse_number(saved);
  if (shards && *shards > 0 && *shards <= kMost) return static_cast<int>(*shards);
  throw BadInput(
      fmt::format("the checkpoint in {} is damaged: it says {} shards", directory, saved));
}

plan::DataOptions data_options(const TrainerParts& parts, const TrainerOptions& options) {
  plan::DataOptions data;
  data.samples = parts.train->size();
  data.global_batch = options.global_batch;
  data.shards = options.shards;
  data.seed = options.seed;
  return data;
}

namespace {

// The learning rate is no part of it: it changes, and checkpoints carry it.
void add_optimizer(optim::Optimizer& optimizer, Job& job) {
  const optim::Trained& trained = optim::inside(optimizer).trained;
  const optim::Groups& groups = trained.groups;
  job["optimizer"] = optimizer.name();
  job["optimizer_options"] = groups.rule(0).options();
  for (std::size_t group = 1; group < groups.count(); ++group) {
    std::size_t members = 0;
    base::Sha256 names;
    for (std::size_t entry = 0; entry < groups.entries(); ++entry) {
      if (groups.group_of(entry) != group) continue;
      ++members;
      names.update(trained.model->layout().entries()[entry].name + "\n");
    }
    job[fmt::format("optimizer_group_{}", group)] =
        fmt::format("{} lr times {} for {} parameters ({})", groups.rule(group).options(),
                    groups.ratio(group), members, base::to_hex(names.finish()).substr(0, 8));
  }
  job["clip_norm"] = fmt::format("{}", optimizer.clip_norm());
}

// Those that add in another order on another number of workers.
void add_algorithm(replica::Replicated& model, Job& job) {
  const Algorithm algorithm = model.parts().options.algorithm;
  const bool bit_stable = algorithm != Algorithm::kRing && algorithm != Algorithm::kNative;
  job["algorithm"] = bit_stable ? "bit-stable" : name(algorithm);
  if (!bit_stable) job["workers"] = std::to_string(model.comm().size());
}

}  // namespace

Job job_of(const TrainerParts& parts, const TrainerOptions& options) {
  Job job = options.job;
  for (const auto& [name, value] : arithmetic_in_use(replica::inside(parts.model).device()))
    job[name] = value;
  job["global_batch"] = std::to_string(options.global_batch);
  job["shards"] = std::to_string(options.shards);
  job["buffers"] = options.buffers == ShardBufferRule::kMean ? "mean" : "first shard";
  job["seed"] = std::to_string(options.seed);
  job["samples"] = std::to_string(parts.train->size());
  add_optimizer(*parts.optimizer, job);
  add_algorithm(replica::inside(parts.model), job);
  if (parts.weight) job["weight"] = "by function";
  return job;
}

}  // namespace lockstep::train
