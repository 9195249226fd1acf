// Batches read ahead by loader threads, given out in order.
#pragma once

#include <lockstep/data.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace lockstep::data {

struct PrefetchOptions {
  int threads = 1;  // 0: read when asked
  int depth = 2;    // batches read ahead
};

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
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t to_read_;
  std::int64_t to_give_;
  std::map<std::int64_t, Result> ready_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::data
