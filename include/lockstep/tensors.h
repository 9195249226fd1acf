// Collectives on tensors, for values that a program averages or shares itself: metrics, seeds, a
// list of files. Every worker calls them in the same order, with tensors of the same shape and
// type.
//
// Threads:   one caller at a time; not at the same time as other calls of World::comm().
// Blocking:  until the result is there, at most the world's timeout. On a GPU, until the operation
//            is queued on the current stream.
// Failure:   Mismatch if shapes or types differ; BadInput for a type that cannot be added;
//            PeerLost, Timeout.
// Ownership: none. Gradients do not flow through them.
#pragma once

#include <lockstep/world.h>
#include <torch/torch.h>

namespace lockstep {

// Replaces every worker's tensor by the reduction over all workers' tensors, in place. Without
// options this is the sum. The bits do not depend on the engine.
void all_reduce(World& world, const torch::Tensor& tensor, const ReduceOptions& options = {});

// Replaces every worker's tensor by that of rank `root`, in place. Any type.
void broadcast(World& world, const torch::Tensor& tensor, int root = 0);

// Returns all workers' tensors, stacked by rank in a new first dimension. Any type.
torch::Tensor all_gather(World& world, const torch::Tensor& tensor);

}  // namespace lockstep
