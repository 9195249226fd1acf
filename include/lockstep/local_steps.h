// Local steps: workers exchange weights now and then, in place of gradients in every step.
//
//   round     some steps that every shard takes by itself, with weights of its own; then an exchange
//   exchange  d = the mean over shards of (w − w_s): w are the weights before the round, w_s those of
//             shard s after it. Then an outer SGD updates w with d as its gradient
//
// Local SGD is the outer learning rate 1: w becomes the mean of all w_s. DiLoCo (Douillard et al.
// 2023) is long rounds with AdamW, and an outer Nesterov momentum.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// What the optimizer's state of a shard is when its next round begins.
enum class LocalState : std::uint8_t {
  kKept,  // its own, as its last round has left it. It takes memory for each shard, and checkpoints have it
  kAveraged,  // the mean over shards: it travels with the weights
  kReset,     // as it was when the Step was made
};

// All of it decides the result.
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

  bool enabled() const { return !stages.empty(); }

  // Rounds of so many steps.
  static LocalSteps sgd(std::int64_t steps);
  // Rounds of one step before step `from`, and of so many steps from there on.
  static LocalSteps post_local_sgd(std::int64_t from, std::int64_t steps);
  // With the numbers of the paper: the outer learning rate 0.7, Nesterov momentum 0.9.
  static LocalSteps diloco(std::int64_t steps = 500);
};

// "rounds of 8 steps from step 0, state kept, outer lr 1 momentum 0". BadInput for numbers that make
// no sense.
std::string to_string(const LocalSteps& local);

}  // namespace lockstep
