// What depends on where a model is, chosen once for each replica.
#pragma once

#include <memory>

#include "torch/replica/banks.h"
#include "torch/replica/reduction.h"

namespace lockstep::replica {

// How the workers of a Comm reach memory like this one, with the algorithm that was asked for.
Reach reach_of(const FlatMemory& gradients, Algorithm algorithm);

// Makes gradients of a model where it is. The factory borrows both.
Banks::Factory gradients_of(const Model& model, const ModelPlan& plan, Device device);

// Borrows all of them.
std::unique_ptr<Reduction> reduction_of(Comm& comm, Banks& banks, const ModelPlan& plan,
                                        const DataParallelOptions& options);

}  // namespace lockstep::replica
