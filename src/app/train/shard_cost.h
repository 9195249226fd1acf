// What it costs that each worker of `lockstep train` computes several small shards in a step, where fewer shards would be
// larger. A model with much more weights than work, such as the mlp, needs nearly as long for 8 samples as for 16.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::app {

// How a global batch is cut.
struct ShardSizes {
  int shards = 0;
  int hosted = 0;            // by the worker that has most of them
  std::int64_t samples = 0;  // of each

  bool operator==(const ShardSizes&) const = default;
};

// The global batch is a multiple of the number of shards.
ShardSizes shard_sizes(std::int64_t global_batch, int shards, int workers);

// With as few shards as these workers can have: nothing if there are as few already.
std::optional<ShardSizes> fewest_shards(std::int64_t global_batch, const ShardSizes& now,
                                        int workers);

// What was measured.
struct ShardCost {
  ShardSizes now;
  ShardSizes fewest;
  double now_ms = 0;  // forward and backward of all shards of a worker, for one step
  double fewest_ms = 0;

  double times() const { return now_ms / fewest_ms; }
};

// For people, when the job begins; empty if the shards cost at most 10 % of the time of both passes.
std::string spoken(const ShardCost& cost);

// For people, when the job has ended and its steps are measured, too; empty if they would take at least 10/11 of their
// time with the fewest shards.
std::string spoken(const ShardCost& cost, double step_ms);

}  // namespace lockstep::app
