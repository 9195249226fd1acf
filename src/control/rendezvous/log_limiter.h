// A stranger must not be able to fill a disk with our log.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace lockstep::control {

// Lets at most `most` lines through in every window of time. Pure: the caller brings the clock.
class LogLimiter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  LogLimiter(int most, std::chrono::milliseconds window) : most_(most), window_(window) {}

  // Nothing: swallow this line. A number: log it; so many were swallowed since the last one.
  std::optional<std::uint64_t> pass(TimePoint now);

 private:
  int most_;
  std::chrono::milliseconds window_;
  TimePoint window_end_{};
  int passed_ = 0;
  std::uint64_t swallowed_ = 0;
};

}  // namespace lockstep::control
