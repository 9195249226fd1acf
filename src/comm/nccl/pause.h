// Between two looks at something that cannot wake anybody.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace lockstep::comm {

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

}  // namespace lockstep::comm
