// For builds without CUDA.
#include <lockstep/errors.h>

#include "flat/cuda/gpus.h"

namespace lockstep::cuda {
namespace {

constexpr const char* kNotBuilt =
    "this build of Lockstep has no CUDA: install the CUDA toolkit (nvcc) and NCCL (libnccl-dev) "
    "and build again";

class NoGpus : public Gpus {
 public:
  FoundGpus find() override { return {0, kNotBuilt}; }
  void use(int /*index*/) override { throw Unavailable(kNotBuilt); }
  std::string model(int /*index*/) override { throw Unavailable(kNotBuilt); }
};

}  // namespace

Gpus& gpus() {
  static NoGpus none;
  return none;
}

}  // namespace lockstep::cuda
