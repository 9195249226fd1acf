#include "torch/step/course.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "comm/group.h"
#include "torch/step/asynchronous_round.h"

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
  alignas(kCacheLine) std::int64_t rounds;              // that were opened
  std::int64_t steps;                                   // of the job, before the last of them
  bool goes_on;                                         // it was begun in the generation before
  std::atomic<bool> half_written;
  plan::TaskBook::Counts counts;
};

// If the worker that copies is lost, the others still have `before`.
Course::Course(Comm& host, const Shape& shape, const Before& before)
    : host_(host), memory_([&] {
        Places places;
        const auto steps = static_cast<std::size_t>(shape.steps);
        const std::size_t tasks = steps * static_cast<std::size_t>(shape.shards);
        places.take(sizeof(Head));
        weights_ = places.take(shape.weights);
        buffers_ = places.take(shape.buffers);
        sum_ = places.take(shape.sum);
        done_ = places.take(steps * sizeof(plan::TaskBook::OfStep));
        losses_ = places.take(tasks * sizeof(plan::TaskLoss));
        updates_ = places.take(tasks * sizeof(plan::OrderedUpdate));
        return replica::FlatMemory(host, places.end(), replica::Copies::kPerHost);
      }()) {
  const bool was_in_it =
      before.course != nullptr && before.course->rounds_ == before.course->head().rounds;
  if (was_in_it) reports_ = before.course->reports_;
  if (before.course != nullptr && before.copies) {
    std::copy_n(before.course->weights(), memory_.bytes() - weights_, weights());
    head().rounds = 1;
    head().steps = before.course->head().steps;
    head().goes_on = true;
    head().counts = before.course->head().counts;
    plan::TaskBook::reopen(book());
  }
  host.barrier().wait();
}

Course::Head& Course::head() const {
  return *at<Head>(0);
}

// A process that is killed has made its stores in order, up to some instruction; the fences keep the compiler from moving them.
void Course::will_write() {
  head().half_written.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
}

void Course::wrote() {
  head().half_written.store(false, std::memory_order_release);
}

bool Course::is_half_written() const {
  return head().half_written.load(std::memory_order_acquire);
}

plan::TaskBook::Memory Course::book() const {
  return {&head().counts, at<plan::TaskBook::OfStep>(done_), at<plan::TaskLoss>(losses_),
          at<plan::OrderedUpdate>(updates_)};
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
      if (deadline.expired()) give_up_round(host_, "its turn");
    }
    std::this_thread::sleep_for(sleep);
    sleep = std::min(sleep * 2, kLongestSleep);
  }
}

Course::Opened Course::open(std::int64_t steps) {
  const bool goes_on = head().rounds == ++rounds_ && head().goes_on;
  if (!goes_on) reports_ = {};
  if (head().rounds == rounds_) {
    LOCKSTEP_CHECK(head().steps == steps, "all workers open the same round");
    return goes_on ? Opened::kGoesOn : Opened::kByAnother;
  }
  will_write();
  head().rounds = rounds_;
  head().steps = steps;
  head().goes_on = false;
  return Opened::kNew;
}

std::int64_t Course::updates() const {
  return head().counts.updates;
}

bool Course::is_whole(std::int64_t steps) const {
  return head().rounds > 0 && head().steps == steps && !is_half_written();
}

}  // namespace lockstep::steps
