// A point in time by which a call must have returned or thrown. Every wait in Lockstep takes one.
#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline at(Clock::time_point when) { return Deadline(when); }
  static Deadline after(std::chrono::nanoseconds span) {
    // A span of more than a year counts as a year, so that the addition cannot overflow.
    constexpr std::chrono::nanoseconds kYear = std::chrono::hours(24 * 365);
    return Deadline(Clock::now() + std::min(span, kYear));
  }

  Clock::time_point when() const { return when_; }
  bool expired() const { return Clock::now() >= when_; }

  // The time that is left; never negative.
  std::chrono::nanoseconds left() const {
    return std::max(std::chrono::nanoseconds(when_ - Clock::now()), std::chrono::nanoseconds(0));
  }
  // The same in whole milliseconds, rounded up, for poll(2). Rounded down, a last fraction of a
  // millisecond would become 0, and a loop around poll() would spin.
  int left_ms() const {
    constexpr std::chrono::nanoseconds kMostOfPoll = std::chrono::hours(24);
    return static_cast<int>(
        std::chrono::ceil<std::chrono::milliseconds>(std::min(left(), kMostOfPoll)).count());
  }

  friend Deadline earlier(Deadline a, Deadline b) { return a.when_ < b.when_ ? a : b; }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

}  // namespace lockstep
