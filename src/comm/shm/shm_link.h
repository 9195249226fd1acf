// Messages between workers of one host through rings in shared memory.
//
// There is no thread of its own: the threads that wait for transfers move the bytes. One of them
// drives. It empties the rings, answers, fills the peers' rings, and sleeps on the doorbell if
// there is nothing to do. It also completes the transfers of the other threads that wait, and wakes
// them.
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

// What the workers of one host have after forming: the segments of all by rank, and the peers'
// processes.
struct ShmWorld {
  int rank = 0;
  std::string secret;
  std::string name;
  std::vector<Segment> segments;
  std::vector<ShmMonitor::Watched> watched;
};

std::shared_ptr<Link> make_shm_link(ShmWorld world);

}  // namespace lockstep::comm
