// MPI in this process. It can be initialised once and finalised once, and neither call has a
// deadline of its own: a thread that lives as long as the process makes both, and others wait for
// it until their deadlines.
#pragma once

#include <lockstep/deadline.h>

#include <memory>
#include <vector>

#include "comm/mpi/mpi_calls.h"

namespace lockstep::comm {

// The MPI of this process, loaded with the first call. Throws Unavailable.
MpiCalls& mpi_of_process();

// Initialises MPI if nobody has. It is finalised at the end of the process then. Throws Unavailable,
// or Timeout at the deadline.
MpiWorld start_mpi(Deadline deadline);

// Memory that MPI may still use when its link has ended, and the communicator it travels on.
struct MpiLeftover {
  std::shared_ptr<MpiCommunicator> communicator;
  std::vector<std::pair<std::unique_ptr<MpiRequest>, std::unique_ptr<std::byte[]>>> requests;
};

// What links ask from the process. Threads: any.
class MpiProcess {
 public:
  virtual ~MpiProcess() = default;

  // Whether MPI can be called: it is initialised and not finalised, by anybody.
  virtual bool usable() noexcept = 0;
  // Keeps it until MPI is done with it, at worst until the end of the process.
  virtual void keep(MpiLeftover leftover) noexcept = 0;
};
MpiProcess& mpi_process();

}  // namespace lockstep::comm
