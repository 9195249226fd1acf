#include "app/train/shard_cost.h"

#include <fmt/format.h>

namespace lockstep::app {
namespace {

constexpr double kWorthSaying = 1.1;  // times as long

// "4 shards of 8 samples", "1 shard of 32"
std::string spoken(const ShardSizes& sizes, const char* samples) {
  return fmt::format("{} shard{} of {}{}", sizes.hosted, sizes.hosted == 1 ? "" : "s",
                     sizes.samples, samples);
}

std::string measured(const ShardCost& cost) {
  return fmt::format("{} take {:.2f} times as long, forward and backward, as {}",
                     spoken(cost.now, " samples"), cost.times(), spoken(cost.fewest, ""));
}

}  // namespace

ShardSizes shard_sizes(std::int64_t global_batch, int shards, int workers) {
  return {shards, (shards + workers - 1) / workers, global_batch / shards};
}

std::optional<ShardSizes> fewest_shards(std::int64_t global_batch, const ShardSizes& now,
                                        int workers) {
  for (int shards = workers; shards < now.shards; ++shards) {
    if (global_batch % shards == 0) return shard_sizes(global_batch, shards, workers);
  }
  return std::nullopt;
}

std::string spoken(const ShardCost& cost) {
  if (cost.times() <= kWorthSaying) return "";
  return fmt::format(
      "on each worker {}; a new job with --shards {} would be faster, and could run on at most {} "
      "worker{}",
      measured(cost), cost.fewest.shards, cost.fewest.shards, cost.fewest.shards == 1 ? "" : "s");
}

std::string spoken(const ShardCost& cost, double step_ms) {
  const double saved = cost.now_ms - cost.fewest_ms;
  if (step_ms <= saved || step_ms / (step_ms - saved) <= kWorthSaying) return "";
  return fmt::format("{} instead of {} cost about {:.1f} of {:.1f} ms: {} (measured at the start)",
                     cost.now.shards, cost.fewest.shards, saved, step_ms, measured(cost));
}

}  // namespace lockstep::app
