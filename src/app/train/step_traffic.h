// The gradients that travel in a step of `lockstep train`, for its report: a number of shards that divides badly among the
// workers multiplies them, and nothing else would show it.
#pragma once

#include <lockstep/comm.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "plan/buckets.h"

namespace lockstep::app {

struct StepTraffic {
  bool in_place = false;  // read where they lie; nothing travels
  // Sent or received, whichever is more, by the busiest worker; none: not known.
  std::optional<std::size_t> bytes;
  // None where no ring would move any, or where bytes are not known.
  std::optional<double> times_ring;
};

// Where every bucket is reduced by messages between workers, by this algorithm (Comm::runs). What `tree` and an engine's
// own all-reduce send is not counted.
StepTraffic traffic_of(Algorithm algorithm, int shards, int workers,
                       std::span<const plan::Bucket> buckets);

// A line for people, or nothing if there is nothing to say.
std::string spoken(const StepTraffic& traffic, int shards, int workers);

}  // namespace lockstep::app
