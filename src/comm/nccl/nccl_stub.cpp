#include <lockstep/errors.h>

#include "comm/nccl/nccl_engine.h"

namespace lockstep::comm {

bool nccl_built() {
  return false;
}

std::shared_ptr<NcclApi> load_nccl() {
  throw Unavailable(
      "this build has no nccl engine; install the CUDA toolkit (nvcc) and NCCL (libnccl-dev) and "
      "build again");
}

}  // namespace lockstep::comm
