// The collectives on devices, as moves and sums on one stream.
#pragma once

#include <span>
#include <vector>

#include "comm/core/device.h"
#include "comm/nccl/communicator.h"
#include "plan/tree.h"

namespace lockstep::comm {

// Queues a task on the communicator's stream.
void queue_collective(Communicator& communicator, const DeviceTask& task, Lookout& lookout);

}  // namespace lockstep::comm
