// Local steps: workers exchange weights now and then, in place of gradients in every step. And asynchronous steps, in which
// workers share weights and do not wait for each other.
//
//   round     some steps that every shard takes by itself, with weights of its own; then an exchange
//   exchange  d = the mean over shards of (w − w_s): w are the weights before the round, w_s those of
//             shard s after it. Then an outer SGD updates w with d as its gradient
//
// Local SGD is the outer learning rate 1: w becomes the mean of all w_s. DiLoCo (Douillard et al.
// 2023) is long rounds with AdamW, and an outer Nesterov momentum.
//
//   asynchronous   the workers of a round share weights. Each takes the next gradient that nobody computes yet, with the
//                  weights as they are, and applies it by itself. They meet where a round ends
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// What the optimizer's state of a shard is when its next round begins.
enum class LocalState : std::uint8_t {
  kKept,  // its own, as its last round has left it. It takes memory for each shard, and checkpoints have it
  kAveraged,  // the mean over shards: it travels with the weights
  kReset,     // as it was when the Step was made
};

// Asynchronous steps. The order in which gradients are applied depends on how fast workers are, and decides the result. A job
// that replays a recorded order has the bits of the job that recorded it, on any number of workers.
//
// An update is a step of the optimizer with the gradient of one shard, and with the part of the learning rate that the
// shard's samples are of the batch. With backups it is a synchronous step, and Outcome::dropped says which part of the
// gradients did not count.
//
// Threads, Blocking, Failure, Ownership: as LocalSteps.
struct Asynchronous {
  static constexpr std::int64_t kUnbounded = -1;

  // No gradient of step t is begun before all of step t − staleness − 1 are applied. 0: only with backups.
  std::int64_t staleness = kUnbounded;
  // Above 0, with a staleness of 0: of the shards of each step the first ones to be ready count, all but so many. Their mean is
  // applied as in a synchronous step. Who comes later is left out, and nobody waits for it.
  int backups = 0;
  // An update that has missed as many others as there are shards, or more, gets less of the learning rate (Zhang et al. 2016).
  bool slows_if_stale = false;
  // λ of Zheng et al. 2017: g + λ·g²·(w now − w that g was computed from), element by element. 0: nothing is added.
  double delay_compensation = 0;

  // Files. `order`: gets the order of this job. `replay`: has the order that this job keeps.
  std::string order = {};
  std::string replay = {};
};

// Streaming DiLoCo (Douillard et al. 2025): an exchange is that of one fragment of the model, while training goes on.
//
// A fragment is some consecutive parameters, all of about the same size. Round r sends what shards have changed in fragment
// r mod `fragments` until the round began, and trains meanwhile. When it has ended, the fragment is updated, and every
// shard mixes it with its own weights. So what comes is late by one round. The last round of a loop exchanges all fragments,
// when it has ended, and is not late.
//
// Threads, Blocking, Failure, Ownership: as LocalSteps.
struct Streaming {
  int fragments = 4;  // 2 or more
  // What a shard keeps of its own weights when it mixes: 0 to below 1, the paper's α.
  double keep = 0.5;
};

// All of it decides the result, but for the name of a file that gets an order.
//
// Threads:   any, as a value.
// Blocking:  never.
// Failure:   the Job throws BadInput for numbers that make no sense.
// Ownership: a value.
struct LocalSteps {
  // From step `from` on, so many steps are a round. A round ends at the latest where the next stage
  // begins, and where a loop ends.
  struct Stage {
    std::int64_t from = 0;
    std::int64_t steps = 1;
    bool operator==(const Stage&) const = default;
  };

  std::vector<Stage> stages =
      {};  // the first begins with step 0. Empty: gradients travel in every step
  LocalState state = LocalState::kKept;
  // The outer SGD, as torch::optim::SGD.
  double outer_lr = 1;
  double outer_momentum = 0;
  bool outer_nesterov = false;

  // A round exchanges one fragment of the model. `state` keeps its default then.
  std::optional<Streaming> streaming = {};

  // The rounds are asynchronous. `state` and the outer SGD keep their defaults then.
  std::optional<Asynchronous> asynchronous = {};

  bool enabled() const { return !stages.empty(); }

  // Rounds of so many steps.
  static LocalSteps sgd(std::int64_t steps);
  // Rounds of one step before step `from`, and of so many steps from there on.
  static LocalSteps post_local_sgd(std::int64_t from, std::int64_t steps);
  // With the numbers of the paper: the outer learning rate 0.7, Nesterov momentum 0.9.
  static LocalSteps diloco(std::int64_t steps = 500);
  // The same, streaming: each fragment is exchanged every so many steps. BadInput unless they are rounds of as many steps.
  static LocalSteps streaming_diloco(std::int64_t steps = 100, int fragments = 4);
  // Asynchronous rounds of so many steps. Nothing for a staleness of 0: that is the synchronous step.
  static LocalSteps stale(std::int64_t staleness, std::int64_t steps = 50);
  // Rounds of steps that wait for all shards but so many. Nothing for 0.
  static LocalSteps with_backups(int backups, std::int64_t steps = 50);
};

// "rounds of 8 steps from step 0, state kept, outer lr 1 momentum 0". BadInput for numbers that make
// no sense.
std::string to_string(const LocalSteps& local);

}  // namespace lockstep
