// How many bytes of gradients travel in a step of `lockstep train`, for its report. If the shards do not divide well
// among the workers, it is many times more, and nothing else would show it.
#pragma once

#include <lockstep/comm.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "plan/buckets.h"

namespace lockstep::app {

struct StepTraffic {
  bool in_place = false;  // workers share the memory of gradients; nothing travels
  // What the busiest worker sends or receives, whichever is more; nothing if not known.
  std::optional<std::size_t> bytes;
  // Divided by the bytes of the ring algorithm; nothing if those are 0, or if bytes are not known.
  std::optional<double> times_ring;
  // Of asynchronous steps by messages, in place of both: for each shard of a step.
  std::optional<std::size_t> of_task = {};
  bool of_host = false;  // in two levels: of the busiest host, and of a ring of hosts
};

// For buckets that are reduced by messages between workers with this algorithm (Comm::runs). The bytes of `tree` and of
// an engine's own all-reduce are not known. `hosts` is Comm::hosts(), for two levels.
StepTraffic traffic_of(Algorithm algorithm, int shards, int workers,
                       std::span<const plan::Bucket> buckets, std::span<const int> hosts = {});

// The job that it is said of.
struct TrafficOf {
  int shards = 0;
  int workers = 0;
  bool rounds = false;  // it has local steps
};

// A line for people, or nothing if there is nothing to say.
std::string spoken(const StepTraffic& traffic, const TrafficOf& of);

}  // namespace lockstep::app
