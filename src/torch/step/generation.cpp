#include "torch/step/generation.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <cmath>
#include <string>

#include "base/environment.h"
#include "plan/position.h"
#include "torch/replica/agreement.h"
#include "torch/step/checkpoint.h"

namespace lockstep {

int default_shards(std::int64_t global_batch) {
  return plan::default_shards(global_batch);
}

}  // namespace lockstep

namespace lockstep::steps {
namespace {

// A worker that joins later may say "refuse" where the others, which were restarted, go on from the checkpoint: it takes
// the state from them.
void agree_on_checkpoints(const World& world, Comm& comm, const JobSetup& setup) {
  const bool later = world.elastic() && world.generation() > 1;
  const char* const names[] = {"refuse", "resume", "replace"};
  const auto existing = static_cast<std::size_t>(setup.options.existing_checkpoint);
  replica::agree(comm,
                 {{"checkpoint_directory", setup.options.checkpoint.empty() ? "none" : "set"},
                  {"existing_checkpoint", later ? "as the job has it" : names[existing]},
                  {"verify_log", setup.only_reads ? "set" : "none"}},
                 {"workers run different jobs", "start all of them with the same options"});
}

// The number of shards in a directory's checkpoint; 0 if there is none. Collective.
int saved_shards(Comm& comm, const std::string& directory) {
  constexpr std::int64_t kMost = 1 << 24;
  const std::string saved = checkpoint_property(comm, directory, "shards");
  if (saved.empty()) return 0;
  const auto shards = base::parse_number(saved);
  if (shards && *shards > 0 && *shards <= kMost) return static_cast<int>(*shards);
  throw BadInput(
      fmt::format("the checkpoint in {} is damaged: it says {} shards", directory, saved));
}

void check_checkpoints(const JobOptions& options) {
  if (options.checkpoint_every_steps < 0)
    throw BadInput("checkpoint_every_steps is 0, for the end of every epoch, or more");
  if (!std::isfinite(options.checkpoint_every_seconds) || options.checkpoint_every_seconds < 0)
    throw BadInput("checkpoint_every_seconds is a number of seconds, 0 or more");
  if (options.checkpoint_every_steps > 0 && options.checkpoint_every_seconds > 0)
    throw BadInput("checkpoint_every_steps and checkpoint_every_seconds: set one of the two");
  if (options.keep_checkpoints < 1) throw BadInput("keep_checkpoints is 1 or more");
}

void check_shards(const JobOptions& options, int workers) {
  constexpr int kMostShards = 1 << 16;
  if (options.shards < 0 || options.shards > kMostShards) {
    throw BadInput(
        fmt::format("a job of {} shards: choose from 1 to {}", options.shards, kMostShards));
  }
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

}  // namespace

bool resumes(const JobOptions& options) {
  return options.existing_checkpoint == ExistingCheckpoint::kResume && !options.checkpoint.empty();
}

Generation make_generation(World& world, JobSetup& setup) {
  JobOptions& options = setup.options;
  setup.asked_shards = options.shards;
  // The checkpoint is this job's, and no other job's.
  if (world.restarted() && !options.checkpoint.empty())
    options.existing_checkpoint = ExistingCheckpoint::kResume;
  Comm control = world.open_channel();
  agree_on_checkpoints(world, control, setup);
  if (options.shards == 0 && resumes(options))
    options.shards = saved_shards(control, options.checkpoint);
  if (options.shards == 0 && setup.accumulate > 0) options.shards = world.size() * setup.accumulate;
  if (options.shards == 0) options.shards = default_shards(options.global_batch);
  check_shards(options, world.size());
  check_checkpoints(options);
  return {control::handle_on(world),
          world.inventory(),
          std::move(control),
          options.shards,
          plan::hosted_shards(world.rank(), world.size(), options.shards),
          plan::plan_sharded_reduction(options.shards, world.size())};
}

}  // namespace lockstep::steps
