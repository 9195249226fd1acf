// Memory of a GPU for values in the fixed layout.
#pragma once

#include <lockstep/buffer.h>
#include <torch/torch.h>

#include <cstddef>

namespace lockstep::replica {

// So many bytes of a GPU, at least one, all zero; undefined on the CPU. Unavailable if the GPU has too little left.
torch::Tensor device_memory(Device device, std::size_t bytes);

}  // namespace lockstep::replica
