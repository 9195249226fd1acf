// What PyTorch users rely on in a drop-in loop, on GPUs that several workers share.
#pragma once

#include <lockstep/world.h>

namespace lockstep::testing {

// How far buffers, metrics, gradients of embeddings and of penalties are apart from what plain LibTorch computes from the
// batches of all workers. Collective.
double distance_of_drop_in(World& world);

}  // namespace lockstep::testing
