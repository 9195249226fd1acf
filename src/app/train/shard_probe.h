// Measures what the shards of a job cost, before it begins.
#pragma once

#include <lockstep/data.h>
#include <lockstep/world.h>

#include <functional>
#include <memory>
#include <optional>

#include "app/train/shard_cost.h"
#include "torch/models/models.h"

namespace lockstep::app {

// Computes some passes of a model of its own, on all workers at the same time: about as much as three or four steps of
// the job. Nothing of the job changes; LibTorch's generator is as before. Nothing is measured if a step would take
// longer than two seconds, or if the host might have too little memory for the larger shard. Collective; on a CPU only.
std::optional<ShardCost> measure_shards(World& world, const ShardSizes& now,
                                        const ShardSizes& fewest, const Dataset& data,
                                        const std::function<std::shared_ptr<models::Net>()>& make);

}  // namespace lockstep::app
