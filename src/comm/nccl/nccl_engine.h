// The `nccl` engine: workers with GPUs, on one host or many.
#pragma once

#include <memory>

#include "comm/core/link.h"
#include "comm/nccl/nccl_api.h"

namespace lockstep::comm {

bool nccl_built();

// The libraries behind the engine. Unavailable when this build has none, or this host has no NCCL.
std::shared_ptr<NcclApi> load_nccl();

// A link whose workers have devices. Host memory, headers, messages and the news of failure go over the link that it
// wraps, one between processes; memory of devices goes over NCCL.

// Takes `host` over: whoever ends this one has ended that.
std::shared_ptr<Link> make_nccl_link(std::shared_ptr<Link> host, std::shared_ptr<NcclApi> api);

}  // namespace lockstep::comm
