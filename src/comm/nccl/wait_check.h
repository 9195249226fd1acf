// What a wait for other workers' devices looks at meanwhile: the link, its members, the clock. A device cannot tell for
// whom it waits, or that nobody will come.
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

// Between two looks at something that cannot wake anybody.

// Spins for as long as a short operation takes on a device, then sleeps, a little longer each time.
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

// Threads:   one.
// Blocking:  look and explain, for a second at most when they have found something: to hear what the others say.
// Failure:   found ones are returned; the link is not ended.
// Ownership: borrows the link.
class WaitCheck {
 public:
  // `members` are the link's ranks. `doing` names the operation.
  WaitCheck(Link& link, std::vector<int> members, std::string doing);

  // A wait begins.
  void begin(Deadline deadline);

  // Why waiting on is in vain; nothing if it is not.
  std::optional<Failure> look();

  // The same when the library says that something is wrong.
  Failure explain(const NcclState& state);

 private:
  // A member that leaves may have sent all that it owed: for so long what it sent may still be on its way.
  static constexpr auto kGrace = std::chrono::milliseconds(300);
  // Workers that wait for the same one run out of time together, give or take this.
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
