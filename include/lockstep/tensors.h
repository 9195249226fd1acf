// Collectives on tensors, for what a program averages or shares itself: metrics, seeds, a list of files. All of them are
// collective: every worker calls them, in the same order, with tensors of one shape and type.
//
// Threads:   one caller at a time; not beside other calls of World::comm().
// Blocking:  until the result is there, at most the world's timeout; on a GPU, until it is queued on the current stream.
// Failure:   Mismatch when shapes or types differ; BadInput for a type that cannot be added up; PeerLost, Timeout.
// Ownership: none. Gradients do not flow through them.
#pragma once

#include <lockstep/world.h>
#include <torch/torch.h>

namespace lockstep {

// Every worker's tensor becomes the reduction over all of them, in place: their sum, if nothing else is asked for. The
// bits do not depend on the engine.
void all_reduce(World& world, const torch::Tensor& tensor, const ReduceOptions& options = {});

// Every worker's tensor becomes rank `root`'s, in place. Of any type.
void broadcast(World& world, const torch::Tensor& tensor, int root = 0);

// All workers' tensors, one after the other in a new first dimension, by rank. Of any type.
torch::Tensor all_gather(World& world, const torch::Tensor& tensor);

}  // namespace lockstep
