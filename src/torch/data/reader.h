// How data is read: batches in order, ahead of the step that wants them, and moved to the GPU ahead, if there is one.
//
//   read         one batch, now, on this thread
//   Prefetcher   numbered batches, read by loader threads and given out in order
//   Reader       the batches of a worker: those of an epoch of a Loader, or of the shards that it hosts of a Job
//
// Who reads what is decided elsewhere (plan/position.h): a Reader is told the samples of a batch by its number.
#pragma once

#include <lockstep/data.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "plan/position.h"
#include "torch/device/upload.h"

namespace lockstep::data {

// What the data set draws from LibTorch's default generator depends on the samples alone, and the model's numbers stay
// untouched. BadInput for a batch of another number of samples; else what the data set throws.
Batch read(const Dataset& dataset, std::span<const Sample> samples);

struct PrefetchOptions {
  int threads = 1;  // 0: read when asked
  int depth = 2;    // batches read ahead
};

// In order whatever the number of threads: which batch a step sees must not depend on the machine.
//
// Threads:   one caller of next(); `read` is called from all loader threads at once.
// Blocking:  next(), until the batch has been read; the destructor, until reads under way end.
// Failure:   next() throws what `read` threw for that batch.
// Ownership: keeps at most depth batches.
class Prefetcher {
 public:
  using Read = std::function<Batch(std::int64_t)>;

  // Will give read(first), read(first + 1) … read(end − 1).
  Prefetcher(std::int64_t first, std::int64_t end, Read read, const PrefetchOptions& options);
  ~Prefetcher();

  // Nothing after the last.
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
  std::int64_t depth_;
  base::Mutex mutex_;
  std::condition_variable changed_;
  std::int64_t to_read_ LOCKSTEP_GUARDED_BY(mutex_);
  std::int64_t to_give_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::int64_t, Result> ready_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // for the caller's thread only
};

// The samples of every shard of every step, with their seeds. It has a lock, because the plan remembers the orders of
// epochs that it was asked for, and loader threads ask it.
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

// Threads:   one caller at a time; loader threads stay inside.
// Blocking:  next(), look_ahead() and again(), until the batch has been read.
// Failure:   what the data set throws, for the batch that it is of.
// Ownership: shares the data set; batches are the caller's, on the device.
class Reader {
 public:
  // The samples of a batch by its number, from 0 on. Called from all loader threads at once. None: the batch is empty.
  using Samples = std::function<std::vector<Sample>(std::int64_t number)>;

  Reader(DatasetPtr dataset, std::int64_t count, Samples samples, const PrefetchOptions& prefetch,
         Device device = {});

  // In order; nothing after the last.
  std::optional<Batch> next();

  // With a GPU: moves the next batch there while it computes; to be called when work has been queued. next() finds it
  // there, and the current stream waits for it.
  void look_ahead();

  // Any samples, now, whether or not they are of a batch to come.
  Batch again(std::span<const Sample> samples);

 private:
  Batch read_ahead(std::int64_t number) const;

  DatasetPtr dataset_;
  Samples samples_;
  bool has_threads_;  // batches are made by other threads than next()'s
  std::optional<device::Upload> upload_;
  std::optional<Batch> ahead_;
  Prefetcher prefetcher_;  // last: its threads use the others
};

}  // namespace lockstep::data
