// The `nccl` engine: workers with GPUs, on one host or many.
#pragma once

#include <memory>

#include "comm/nccl/nccl_api.h"

namespace lockstep::comm {

bool nccl_built();

// The libraries behind the engine. Unavailable when this build has none, or this host has no NCCL.
std::shared_ptr<NcclApi> load_nccl();

}  // namespace lockstep::comm
