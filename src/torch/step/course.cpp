#include "torch/step/course.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "comm/group.h"

namespace lockstep::steps {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr int kSpins = 64;     // before a waiting worker sleeps
constexpr int kLookEvery = 8;  // sleeps, between two looks whether the others live
constexpr std::chrono::microseconds kShortestSleep{20};
constexpr std::chrono::microseconds kLongestSleep{500};

std::size_t aligned(std::size_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

// Where the parts of a memory lie, one after the other.
class Places {
 public:
  std::size_t take(std::size_t bytes) { return std::exchange(end_, end_ + aligned(bytes)); }
  std::size_t end() const { return end_; }

 private:
  std::size_t end_ = 0;
};

}  // namespace

struct Course::Head {
  alignas(kCacheLine) std::atomic<std::uint32_t> turn;  // 0: free
  alignas(kCacheLine) Counts counts;
};

Course::Course(Comm& host, const Shape& shape)
    : host_(host), shape_(shape), memory_([&] {
        Places places;
        const auto steps = static_cast<std::size_t>(shape.steps);
        const std::size_t tasks = steps * static_cast<std::size_t>(shape.shards);
        places.take(sizeof(Head));
        weights_ = places.take(shape.weights);
        buffers_ = places.take(shape.buffers);
        sum_ = places.take(shape.sum);
        done_ = places.take(steps * sizeof(Done));
        losses_ = places.take(tasks * sizeof(Loss));
        updates_ = places.take(tasks * sizeof(plan::OrderedUpdate));
        return replica::FlatMemory(host, places.end(), replica::Copies::kPerHost);
      }()) {}

Course::Head& Course::head() const {
  return *at<Head>(0);
}

Course::Loss* Course::losses() const {
  return at<Loss>(losses_);
}

Course::Counts& Course::counts() {
  return head().counts;
}

// It sleeps between two looks: a task takes milliseconds, and workers may be more than cores.
Course::Turn Course::when(const Condition& condition, const std::function<void()>& waits) {
  const Deadline deadline = Deadline::after(host_.timeout());
  std::chrono::microseconds sleep = kShortestSleep;
  for (int looks = 0;; ++looks) {
    std::uint32_t free = 0;
    if (head().turn.compare_exchange_strong(free, 1, std::memory_order_acquire)) {
      Turn turn(head().turn);
      if (condition()) return turn;
    }
    if (looks == 0) waits();
    if (looks < kSpins) {
      std::this_thread::yield();
      continue;
    }
    if (looks % kLookEvery == 0) {
      comm::Inside::require_all(host_);
      if (deadline.expired()) give_up();
    }
    std::this_thread::sleep_for(sleep);
    sleep = std::min(sleep * 2, kLongestSleep);
  }
}

void Course::give_up() {
  const Timeout error(
      fmt::format(
          "rank {} has waited for {} ms in an asynchronous round: another worker is slow, or "
          "stopped; give more --timeout",
          host_.rank(), host_.timeout().count()),
      {host_.rank()});
  comm::Inside::fail(host_, error);
  throw error;
}

bool Course::open(std::int64_t steps) {
  LOCKSTEP_CHECK(steps <= shape_.steps, "no round is longer than the longest");
  ++rounds_;
  if (counts().rounds == rounds_) return false;
  counts() = {.rounds = rounds_, .steps = steps};
  std::fill_n(at<Done>(done_), steps, Done());
  std::fill_n(losses(), steps * shape_.shards, Loss());
  return true;
}

void Course::note_update(const plan::OrderedUpdate& update) {
  at<plan::OrderedUpdate>(updates_)[counts().updates++] = update;
}

Course::Done Course::note_done(std::int64_t step, int shard, const Loss& loss) {
  losses()[step * shape_.shards + shard] = loss;
  Done& done = at<Done>(done_)[step];
  ++done.tasks;
  done.samples += loss.samples;
  return done;
}

Course::Loss Course::loss() const {
  Loss all;
  for (std::int64_t task = 0; task < head().counts.steps * shape_.shards; ++task) {
    all.sum += losses()[task].sum;
    all.samples += losses()[task].samples;
  }
  return all;
}

std::vector<plan::OrderedUpdate> Course::order() {
  const auto* const first = at<plan::OrderedUpdate>(updates_);
  return {first, first + counts().updates};
}

}  // namespace lockstep::steps
