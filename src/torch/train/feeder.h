// The batches of the shards that a worker hosts, step after step, read ahead.
#pragma once

#include <lockstep/data.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include "plan/position.h"
#include "plan/tree.h"
#include "torch/data/prefetcher.h"

namespace lockstep::train {

struct Span {
  std::int64_t first_step = 0;
  std::int64_t end_step = 0;
};

// Threads:   one caller at a time; loader threads stay inside.
// Blocking:  next(), until the batch has been read.
// Failure:   what the data set throws.
// Ownership: shares the data set.
class Feeder {
 public:
  Feeder(DatasetPtr dataset, const plan::DataOptions& options, plan::ShardRange hosted, Span steps,
         const data::PrefetchOptions& prefetch);

  // The next hosted shard's batch, in order of steps and, within one, of shards. A shard that has
  // no samples in a short last batch gives an empty one.
  Batch next();

 private:
  Batch read(std::int64_t number);

  DatasetPtr dataset_;
  plan::ShardRange hosted_;
  Span steps_;
  std::mutex mutex_;
  plan::Batches batches_;
  std::optional<data::Prefetcher> prefetcher_;  // last: its threads use the others
};

}  // namespace lockstep::train
