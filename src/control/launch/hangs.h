// Which worker hangs. Pure: the caller looks at what workers say (rendezvous/news.h), and brings the time.
//
//   hung      in the middle of computing a phase, and has said nothing for the limit
//   waiter    waits for the others, and has done so for the limit
//   silent    has said nothing for the limit, whatever it does
//   limit     what the user asked for; else 30 s, or 10 times the median phase if that is longer
//
// A worker is hung only if there is a waiter. A checkpoint, an evaluation, what a program does between two batches, and
// the first phase of a process, in which libraries prepare themselves, have no limit here. Time in which nobody looked does
// not count: the launcher, or the whole host, may have been asleep.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "control/rendezvous/news.h"

namespace lockstep::control {

// Threads:   one caller at a time.
// Blocking:  never; time is an argument.
// Failure:   none.
// Ownership: plain values.
class Hangs {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::seconds kEvery{1};  // how often to look
  static constexpr std::chrono::seconds kLate{5};   // a longer pause does not count
  static constexpr std::chrono::seconds kLeastLimit{30};
  static constexpr int kMedianPhases = 10;

  struct Found {
    std::vector<int> hung;
    std::vector<int> waiters;
    std::vector<int> silent;
    Clock::duration limit{};
  };

  explicit Hangs(std::optional<Clock::duration> limit) : asked_(limit) {}

  // What the members of the generation say now, by place.
  Found look(const std::map<int, Said>& said, Clock::time_point now);

 private:
  static constexpr std::size_t kMostPhases = 32;

  struct Place {
    Said said;
    Clock::time_point since;     // it says this
    Clock::time_point phase_at;  // when its phases were last seen to grow
  };

  void take(const std::map<int, Said>& said, Clock::time_point now);
  Clock::duration limit() const;

  std::optional<Clock::duration> asked_;
  std::optional<Clock::time_point> looked_;
  std::map<int, Place> places_;
  std::deque<Clock::duration> phases_;  // the last ones, of any place
};

}  // namespace lockstep::control
