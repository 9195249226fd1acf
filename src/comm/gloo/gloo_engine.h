// The `gloo` engine: CPU workers of one or several hosts over TCP, on Gloo.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/comm.h>

#include <memory>

#include "comm/core/link.h"

namespace lockstep::comm {

bool gloo_built();

// Connects every pair of workers. The two workers of a pair prove the bootstrap's secret to each
// other. If a stranger disturbs the world while it forms, it is formed again. Throws Unavailable if
// this build has no Gloo.
std::shared_ptr<Link> connect_gloo(Bootstrap& bootstrap, const CommOptions& options);

}  // namespace lockstep::comm
