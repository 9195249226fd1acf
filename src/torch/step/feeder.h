// The batches of the shards that a worker hosts, step after step, read ahead; and moved to its GPU ahead, if it has one.
#pragma once

#include <lockstep/data.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "plan/position.h"
#include "plan/tree.h"
#include "torch/data/reader.h"
#include "torch/device/upload.h"

namespace lockstep::steps {

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
         const data::PrefetchOptions& prefetch, Device device = {});

  // The next hosted shard's batch, in order of steps and, within one, of shards. A shard that has
  // no samples in a short last batch gives an empty one.
  Batch next();

  // With a GPU: moves the batch after the last one there while it computes; to be called when work has been queued. next()
  // finds it there, and the current stream waits for it.
  void look_ahead();

  // Any shard of any step, now, whether or not it is hosted here.
  Batch again(std::int64_t step, int shard);

 private:
  Batch read_ahead(std::int64_t number);
  Batch read(std::int64_t step, int shard);
  Batch take();

  std::optional<device::Upload> upload_;
  std::optional<Batch> ahead_;
  std::int64_t left_ = 0;  // to be taken

  DatasetPtr dataset_;
  plan::ShardRange hosted_;
  Span steps_;
  std::mutex mutex_;
  plan::Batches batches_;
  bool apart_;                                  // loader threads read
  std::optional<data::Prefetcher> prefetcher_;  // last: its threads use the others
};

}  // namespace lockstep::steps
