// The engine for CPU workers of one host.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/comm.h>

#include <memory>

#include "comm/core/link.h"

namespace lockstep::comm {

// Unavailable when a worker is on another host, or this host lacks what is needed; Mismatch when a worker is of another
// build.
std::shared_ptr<Link> connect_shm(Bootstrap& bootstrap, const CommOptions& options);

}  // namespace lockstep::comm
