// The `tcp` engine: CPU workers of one or several hosts, over TCP.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/comm.h>

#include <memory>

#include "comm/core/link.h"

namespace lockstep::comm {

// BadInput if the options name an interface that this host does not have.
void check_tcp(const CommOptions& options);

// Connects every pair of workers. The two workers of a pair prove the bootstrap's secret to each
// other (base/pair_proof.h). A stranger that connects meanwhile is sent away.
std::shared_ptr<Link> connect_tcp(Bootstrap& bootstrap, const CommOptions& options);

}  // namespace lockstep::comm
