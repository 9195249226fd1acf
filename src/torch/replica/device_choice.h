// What depends on where a model is, chosen once for each replica.
#pragma once

#include <memory>

#include "torch/replica/banks.h"
#include "torch/replica/buffer_sync.h"
#include "torch/replica/reduction.h"
#include "torch/replica/weight_sample.h"

namespace lockstep::replica {

struct Parts;

// Where the model is. BadInput when this world's engine cannot reach it.
Device device_of(const Model& model, const Comm& comm);

// How the workers of a Comm reach memory like this one, with the algorithm that was asked for.
Reach reach_of(const FlatMemory& gradients, Algorithm algorithm);

// Makes gradients of a model where it is. The factory borrows both.
Banks::Factory gradients_of(const Model& model, const ModelPlan& plan, Device device);

// Borrows all of them.
std::unique_ptr<Reduction> reduction_of(Comm& comm, Banks& banks, const ModelPlan& plan,
                                        const DataParallelOptions& options);

// Shares the tensors.
std::unique_ptr<BufferSync> buffer_sync_of(Comm& comm, const std::vector<NamedTensor>& buffers,
                                           Device device);
std::unique_ptr<WeightSample> weight_sample_of(const Parts& parts);

}  // namespace lockstep::replica
