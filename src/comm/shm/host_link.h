// Several hosts, with shared memory on each: a link between all workers, and boards and arenas for
// the workers of this host.
//
// Messages and failures are the matter of the link below. So a worker that waits at a board looks
// there, every few milliseconds, whether the one that it waits for has ended.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/comm.h>

#include <memory>

#include "comm/core/link.h"

namespace lockstep::comm {

// Adds to a link what the workers of each host share. The link itself, if there is one host, or if
// no host has two workers. All workers of the bootstrap call it. Throws Unavailable if workers that
// have one host name cannot share memory.
std::shared_ptr<Link> share_hosts(std::shared_ptr<Link> network, Bootstrap& bootstrap,
                                  const CommOptions& options);

}  // namespace lockstep::comm
