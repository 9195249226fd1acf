#include "control/rendezvous/log_limiter.h"

#include <utility>

namespace lockstep::control {

std::optional<std::uint64_t> LogLimiter::pass(TimePoint now) {
  if (now >= window_end_) {
    window_end_ = now + window_;
    passed_ = 0;
  }
  if (passed_ == most_) {
    ++swallowed_;
    return std::nullopt;
  }
  ++passed_;
  return std::exchange(swallowed_, 0);
}

}  // namespace lockstep::control
