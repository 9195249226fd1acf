// Several hosts, with shared memory on each: a link between all workers, and boards and arenas for
// the workers of this host.
//
// Messages and failures are the matter of the link below. So a worker that waits at a board looks
// there, every few milliseconds, whether the one that it waits for has ended.
#pragma once

#include <lockstep/bootstrap.h>
#include <lockstep/comm.h>
#include <lockstep/deadline.h>

#include <memory>
#include <vector>

#include "comm/core/link.h"

namespace lockstep::comm {

// The workers of each host come together. They say where they are before the link between all
// workers is made: if one of them fails later, the others learn it from that link and need not wait
// for its word.
//
// Threads:   one.
// Blocking:  both, until the deadline.
// Failure:   Unavailable if workers that have one host name cannot share memory; else as
//            share_arenas, and what ended the link.
// Ownership: borrows the bootstrap.
class HostForming {
 public:
  // `name`: of this worker's host; empty: what the kernel says.
  HostForming(Bootstrap& bootstrap, const std::string& name, Deadline deadline);
  ~HostForming();

  // Adds to the link what the workers of each host share. The link itself, if there is one host, or
  // if no host has two workers. All workers of the bootstrap call it.
  std::shared_ptr<Link> finish(std::shared_ptr<Link> network);

 private:
  struct Meeting;

  Bootstrap& bootstrap_;
  std::vector<int> hosts_;            // the number of each worker's host
  std::unique_ptr<Meeting> meeting_;  // null if nothing is to be shared
};

}  // namespace lockstep::comm
