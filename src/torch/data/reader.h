// How batches are read: in order, ahead of the step that wants them, and moved to the GPU ahead, if there is one.
//
//   read         one batch, now, on this thread
//   Prefetcher   numbered batches, read by loader threads and given out in order
//   Reader       the batches of a worker: of an epoch of a Loader, or of the shards of a Job that it hosts
//
// plan/position.h decides which samples a batch has. A Reader asks for them by the number of the batch.
#pragma once

#include <lockstep/data.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "plan/position.h"
#include "torch/device/upload.h"

namespace lockstep::data {

// The draws by weight that options ask for; null if they ask for none. BadInput for weights that give no distribution.
std::shared_ptr<const plan::WeightedDraws> draws_of(const WeightedSampling& weighted);

// Reads in a DrawScope: what the data set draws from LibTorch's default generator depends on the samples alone, and the
// model's generator does not change. BadInput if the batch has another number of samples; else what the data set throws.
Batch read(const Dataset& dataset, std::span<const Sample> samples);

struct PrefetchOptions {
  int threads = 1;  // 0: next() reads
  int depth = 2;    // batches read ahead
};

// Reads batches ahead on loader threads. It gives them out in order, because which batch a step sees must not depend on the
// number of threads.
//
// Threads:   one caller of next(); `read` is called from all loader threads at once.
// Blocking:  next(), until the batch has been read; the destructor, until reads that are under way have ended.
// Failure:   next() throws what `read` threw for that batch.
// Ownership: keeps at most depth batches.
class Prefetcher {
 public:
  using Read = std::function<Batch(std::int64_t)>;

  // Gives read(0), read(1) … read(end − 1).
  Prefetcher(std::int64_t end, Read read, const PrefetchOptions& options);
  ~Prefetcher();

  // Nothing after the last batch.
  std::optional<Batch> next();

 private:
  struct Result {
    Batch batch;
    std::exception_ptr failure;
  };
  void run();
  void stop();
  Result read_one(std::int64_t number) const;

  Read read_;
  std::int64_t end_;
  std::int64_t depth_;  // at least the number of threads, or some would be idle
  base::Mutex mutex_;
  std::condition_variable changed_;
  std::int64_t to_read_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // the next that a loader thread takes
  std::int64_t to_give_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // the next that next() gives
  std::map<std::int64_t, Result> ready_ LOCKSTEP_GUARDED_BY(mutex_);  // read and not given
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // for the caller's thread only
};

// The samples of every shard of every step, with their seeds. It has a lock, because loader threads ask it at once, and
// plan::Batches remembers the orders of epochs.
//
// Threads:   any.
// Blocking:  never.
// Failure:   none.
// Ownership: a value.
class ShardSamples {
 public:
  explicit ShardSamples(const plan::DataOptions& options) : batches_(options) {}

  std::vector<Sample> of(std::int64_t step, int shard);

 private:
  base::Mutex mutex_;
  plan::Batches batches_ LOCKSTEP_GUARDED_BY(mutex_);
};

// The batches of this worker, on its device.
//
// Threads:   one caller at a time; loader threads stay inside.
// Blocking:  next(), look_ahead() and again(), until the batch has been read.
// Failure:   what the data set threw for a batch, when that batch is asked for.
// Ownership: shares the data set; batches are the caller's.
class Reader {
 public:
  // The samples of a batch by its number, from 0 on. All loader threads call it at once. No samples: an empty batch.
  using Samples = std::function<std::vector<Sample>(std::int64_t number)>;

  Reader(DatasetPtr dataset, std::int64_t count, Samples samples, const PrefetchOptions& prefetch,
         Device device);

  // In order; nothing after the last batch.
  std::optional<Batch> next();

  // With a GPU: moves the next batch there while the GPU computes. Call it when work has been queued. next() then gives
  // that batch, and the current stream waits for the copy.
  void look_ahead();

  // Reads any samples now; the batches to come stay as they are.
  Batch again(std::span<const Sample> samples);

 private:
  Batch read_ahead(std::int64_t number) const;

  DatasetPtr dataset_;
  Samples samples_;
  bool has_threads_;                      // loader threads make the batches
  std::optional<device::Upload> upload_;  // with a GPU
  std::optional<Batch> ahead_;            // on its way to the GPU, and not given yet
  Prefetcher prefetcher_;                 // last, so that it goes first: its threads use the others
};

}  // namespace lockstep::data
