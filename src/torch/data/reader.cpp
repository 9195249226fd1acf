#include "torch/data/reader.h"

#include <lockstep/errors.h>

#include <algorithm>
#include <system_error>

namespace lockstep::data {

Prefetcher::Prefetcher(std::int64_t first, std::int64_t end, Read read,
                       const PrefetchOptions& options)
    : read_(std::move(read)),
      end_(end),
      depth_(std::max(options.depth, std::max(options.threads, 1))),
      to_read_(first),
      to_give_(first) {
  try {
    for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (const std::system_error&) {
    stop();
    throw Unavailable("cannot start a loader thread; use fewer, or raise `ulimit -u`");
  }
}

Prefetcher::~Prefetcher() {
  stop();
}

void Prefetcher::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

Prefetcher::Result Prefetcher::read_one(std::int64_t number) const {
  try {
    return {read_(number), nullptr};
  } catch (...) {
    return {{}, std::current_exception()};
  }
}

void Prefetcher::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock,
                  [this] { return stopping_ || to_read_ >= end_ || to_read_ < to_give_ + depth_; });
    if (stopping_ || to_read_ >= end_) return;
    const std::int64_t number = to_read_++;
    lock.unlock();
    Result result = read_one(number);
    lock.lock();
    ready_[number] = std::move(result);
    changed_.notify_all();
  }
}

std::optional<Batch> Prefetcher::next() {
  std::unique_lock lock(mutex_);
  if (to_give_ >= end_) return std::nullopt;
  const std::int64_t number = to_give_++;
  changed_.notify_all();
  Result result;
  if (threads_.empty()) {
    result = read_one(number);
  } else {
    changed_.wait(lock, [&] { return ready_.count(number) > 0; });
    result = std::move(ready_[number]);
    ready_.erase(number);
  }
  if (result.failure) std::rethrow_exception(result.failure);
  return std::move(result.batch);
}

}  // namespace lockstep::data
