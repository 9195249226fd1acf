// What a wait for devices of other workers looks at meanwhile: the link, its members, the clock. A
// device cannot say for whom it waits, or that nobody will come.
#pragma once

#include <lockstep/deadline.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/core/link.h"
#include "comm/nccl/nccl_api.h"

namespace lockstep::comm {

// The pause between two looks at something that cannot wake a thread. Spins for as long as a short
// operation takes on a device. Then sleeps, longer each time, up to 200 µs.
class Pause {
 public:
  void sleep() {
    constexpr std::chrono::microseconds kSpin{200};
    constexpr std::chrono::microseconds kLongest{200};
    const auto waited = std::chrono::steady_clock::now() - begun_;
    if (waited < kSpin) return std::this_thread::yield();
    std::this_thread::sleep_for(span_);
    span_ = std::min(span_ * 2, kLongest);
  }

 private:
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::chrono::microseconds span_{10};
};

// Finds out whether a wait is in vain, and which worker is to blame.
//
// Threads:   one.
// Blocking:  if look() has found something, it listens to the other workers for up to a second;
//            explain() for up to four, whatever the deadline of the wait.
// Failure:   returns what it finds; does not end the link.
// Ownership: borrows the link.
class WaitCheck {
 public:
  // `members` are the link's ranks. `doing` names the operation.
  WaitCheck(Link& link, std::vector<int> members, std::string doing);

  // A wait begins.
  void begin(Deadline deadline);

  // Why it is in vain to wait longer; nothing if it is not.
  std::optional<Failure> look();

  // The same if the library reports trouble. The library sees a death before the host's link may,
  // and cannot name the worker, so this waits for the host's link to learn of it.
  Failure explain(const NcclState& state);

 private:
  // A member that leaves may have sent everything before. What it sent may still be in flight for
  // this long.
  static constexpr auto kGrace = std::chrono::milliseconds(300);
  // Workers that wait for the same worker are late at about the same time, with at most this
  // difference.
  static constexpr auto kMoment = std::chrono::milliseconds(500);

  std::optional<Failure> end_of_a_member();
  bool is_late_too(int peer, const Failure& told) const;
  Failure late();

  Link& link_;
  std::vector<int> peers_;
  std::string doing_;
  Deadline deadline_;
  Deadline::Clock::time_point begun_;
  std::optional<Deadline::Clock::time_point> first_end_;
};

}  // namespace lockstep::comm
