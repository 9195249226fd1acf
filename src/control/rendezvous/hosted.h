// A rendezvous inside a worker: under torchrun, mpirun or srun rank 0 hosts it while the world
// forms.
#pragma once

#include <lockstep/deadline.h>

#include <memory>

#include "control/rendezvous/server.h"

namespace lockstep::control {

// A RendezvousServer with a thread of its own, on which no signal is delivered.
//
// Threads:   one caller at a time.
// Blocking:  finish() returns by its deadline; the destructor does not wait for anybody.
// Failure:   Unavailable when no thread can be started.
// Ownership: the thread and all connections end with it.
class HostedRendezvous {
 public:
  HostedRendezvous(Listener listener, ServerOptions options);
  HostedRendezvous(HostedRendezvous&&) noexcept;
  ~HostedRendezvous();

  const Address& address() const;

  // Lets the connected workers read their last answer and go; those still there at the deadline
  // are cut off.
  void finish(Deadline deadline);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::control
