// How the workers of a Comm come to map each other's memory.
#pragma once

#include <lockstep/comm.h>

#include "comm/group.h"

namespace lockstep::comm {

// `id` is the same number on every worker, and of no other arena.
std::shared_ptr<SharedArena> share(Comm& comm, const Group& group, std::uint64_t id,
                                   std::size_t bytes);

}  // namespace lockstep::comm
