// The engine for CPU workers of one host.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/comm.h>

#include <memory>

#include "comm/core/link.h"

namespace lockstep::comm {

// Throws Unavailable if a worker is on another host, or if this host lacks what is needed; Mismatch
// if a worker has another build.
std::shared_ptr<Link> connect_shm(Bootstrap& bootstrap, const CommOptions& options);

}  // namespace lockstep::comm
