// The `gloo` engine: CPU workers of one or several hosts over TCP, on Gloo.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/comm.h>

#include <memory>

#include "comm/core/link.h"

namespace lockstep::comm {

bool gloo_built();

// Connects every pair of workers; each pair proves the bootstrap's secret to the other. A world
// that a stranger disturbed while it formed is formed again. Unavailable when this build has no
// Gloo.
std::shared_ptr<Link> connect_gloo(Bootstrap& bootstrap, const CommOptions& options);

}  // namespace lockstep::comm
