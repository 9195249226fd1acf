// What a build without CUDA has in place of gather.cpp and device_encoding.cpp.
#include <lockstep/errors.h>

#include "torch/replica/device_encoding.h"
#include "torch/replica/device_gradients.h"

namespace lockstep::replica {

std::shared_ptr<Gather> make_gather(const plan::Layout&, const plan::Pieces&, Device) {
  return nullptr;
}

std::unique_ptr<Encoding> make_device_encoding(const DataParallelOptions&, const plan::Layout&,
                                               Device) {
  return nullptr;
}

void orthonormalise_on_device(const torch::Tensor&) {
  throw Unavailable("this build has no CUDA");
}

}  // namespace lockstep::replica
