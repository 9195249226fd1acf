// The `mpi` engine: workers that MPI's own launcher has started, over OpenMPI or MPICH. For clusters
// whose network MPI knows best: InfiniBand, RoCE, Slingshot.
//
// MPI only moves messages. The collectives are those of every engine, so the bits are, too.
//
// What MPI cannot promise, so this engine cannot:
//   - a worker that is killed usually ends the whole job, because its launcher kills the others. If
//     others outlive it, nobody tells them: their waits end at their deadlines;
//   - the network is trusted. Nothing is proven, and no message has a tag;
//   - messages are copied once on each side, because MPI does not give memory back before a message
//     has come through.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/comm.h>

#include <memory>

#include "comm/core/link.h"

namespace lockstep::comm {

bool mpi_built();

// The bootstrap's world must be MPI's: the same size, and the same rank of each worker. Initialises
// MPI if the program has not. Throws Unavailable if there is no such MPI.
std::shared_ptr<Link> connect_mpi(Bootstrap& bootstrap, const CommOptions& options);

}  // namespace lockstep::comm
