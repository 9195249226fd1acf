// The `nccl` engine: workers with GPUs, on one host or many.
#pragma once

#include <memory>

#include "comm/core/link.h"
#include "comm/nccl/nccl_api.h"

namespace lockstep::comm {

bool nccl_built();

// The libraries behind the engine. Throws Unavailable if this build has none, or this host has no
// NCCL.
std::shared_ptr<NcclApi> load_nccl();

// A link whose workers have devices. Memory of devices goes over NCCL. Memory of the CPU, headers,
// messages and word of failure go over `host`, a link between processes. Takes `host` over: if one
// of the two links ends, both have ended.
std::shared_ptr<Link> make_nccl_link(std::shared_ptr<Link> host, std::shared_ptr<NcclApi> api);

}  // namespace lockstep::comm
