#include "torch/divergence/fault.h"

#include <fmt/format.h>

namespace lockstep::divergence {

std::string Fault::text(const plan::Layout& layout) const {
  const std::string& name = layout.entries()[where.entry].name;
  const bool gradient = what == What::kGradient;
  return fmt::format(
      "a bit of {}{}{} (elements {} to {}) has changed in the memory of worker {} {}",
      gradient ? "the gradient of " : "", name, gradient ? "" : " or of its optimizer state",
      where.first, where.first + where.count - 1, worker,
      gradient ? "between backward and update" : "since the update before");
}

std::string Fault::remedy() const {
  std::string again = "Go on from the last checkpoint; if it happens again, without that machine";
  if (what == What::kGradient) return again;
  return again +
         ". A loss or a hook that writes to parameters, as max_norm and clamping do, looks the "
         "same: switch check_divergence off for it";
}

}  // namespace lockstep::divergence
