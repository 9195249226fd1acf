// Messages between workers over MPI.
//
// MPI has no way to sleep until something comes. A thread that waits for a transfer asks again and
// again, for all peers: it spins for a moment, then sleeps between two questions, the longer it has
// waited the longer. While nobody waits, one thread of the link asks once in a millisecond.
#pragma once

#include <memory>

#include "comm/core/link.h"
#include "comm/mpi/mpi_process.h"

namespace lockstep::comm {

// What a worker has after forming.
struct MpiFormed {
  int rank = 0;
  int size = 1;
  bool crowded = false;  // this host has more workers than cores
  std::shared_ptr<MpiCommunicator> communicator;
  MpiProcess* process = nullptr;  // outlives the link
};

std::shared_ptr<Link> make_mpi_link(MpiFormed formed);

}  // namespace lockstep::comm
