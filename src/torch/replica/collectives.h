// Collectives on tensors over any Comm. lockstep/tensors.h has them over a world's.
#pragma once

#include <lockstep/comm.h>
#include <torch/types.h>

namespace lockstep::replica {

// As in lockstep/tensors.h. The tensor is dense.
void all_reduce(Comm& comm, const torch::Tensor& tensor, const ReduceOptions& options = {});
// The same in two calls. The tensor is borrowed until the second.
Work start_all_reduce(Comm& comm, const torch::Tensor& tensor, const ReduceOptions& options = {});
void finish_all_reduce(const Work& work, const torch::Tensor& tensor);
torch::Tensor all_gather(Comm& comm, const torch::Tensor& tensor);

}  // namespace lockstep::replica
