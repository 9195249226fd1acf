// A bit that nobody wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "plan/layout.h"

namespace lockstep::divergence {

struct Fault {
  enum class What : std::uint8_t {
    kGradient,   // between a backward pass and the update
    kParameter,  // or its optimizer's state, between two updates
  };
  What what = What::kGradient;
  plan::Stretch where;
  int worker = 0;  // whose memory it was, by rank

  // "a bit of the gradient of fc1.weight (elements 0 to 8191) has changed in the memory of worker 1 …"
  std::string text(const plan::Layout& layout) const;
  std::string remedy() const;
};

// The first fault that was found.
//
// Threads:   any.
// Blocking:  never.
// Failure:   none.
class FirstFault {
 public:
  void note(const Fault& fault) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = fault;
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    first_.reset();
  }
  std::optional<Fault> get() const {
    const std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Fault> first_;
};

}  // namespace lockstep::divergence
