// The sum over everyone's operands on the device.
#pragma once

#include "comm/nccl/tree_program.h"

namespace lockstep::comm {

// Queues the sum on a stream of the current device.
void queue_tree_sum(const SumTask& task, void* stream);

}  // namespace lockstep::comm
