// Collectives on tensors over any Comm. lockstep/tensors.h has them over a world's.
#pragma once

#include <lockstep/comm.h>
#include <torch/types.h>

namespace lockstep::replica {

// As in lockstep/tensors.h. The tensor is dense.
void all_reduce(Comm& comm, const torch::Tensor& tensor, const ReduceOptions& options = {});
torch::Tensor all_gather(Comm& comm, const torch::Tensor& tensor);

}  // namespace lockstep::replica
