// What a build with CUDA has for codecs on a GPU (encoding.h, low_rank.h).
#pragma once

#include <lockstep/data_parallel.h>

#include <memory>

#include "torch/replica/encoding.h"

namespace lockstep::replica {

// Null for a codec that GPUs do not know, and in a build without CUDA.
std::unique_ptr<Encoding> make_device_encoding(const DataParallelOptions& options,
                                               const plan::Layout& layout, Device device);

// Makes the columns of a factor orthonormal (flat/device_low_rank.h), queued on the current stream. Unavailable in a build
// without CUDA.
void orthonormalise_on_device(const torch::Tensor& factor);

}  // namespace lockstep::replica
