// Messages between workers of one host through rings in shared memory.
//
// Nobody moves bytes but who waits: every transfer that is not done has a thread that waits for it, and of the threads
// that wait one drives: it empties the rings, answers, fills the peers' rings, and sleeps on the doorbell when there is
// nothing to do. What it finds for the others it hands to them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/core/link.h"
#include "comm/shm/ring.h"
#include "comm/shm/segment.h"
#include "comm/shm/shm_workers.h"

namespace lockstep::comm {

// What a world of one host has formed: everyone's segments by rank, and who watches them.
struct ShmWorld {
  int rank = 0;
  std::string secret;
  std::string name;
  std::vector<Segment> segments;
  std::vector<ShmMonitor::Watched> watched;
};

std::shared_ptr<Link> make_shm_link(ShmWorld world);

}  // namespace lockstep::comm
