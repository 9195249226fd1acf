// The sum over everyone's operands on the device.
#pragma once

#include "flat/tree_program.h"

namespace lockstep::flat {

// Queues the sum on a stream of the current device.
void queue_tree_sum(const SumTask& task, void* stream);

}  // namespace lockstep::flat
