// Ends of workers for the tests of decisions.
#pragma once

#include "control/launch/worker_end.h"

namespace lockstep::control {

inline WorkerEnd exited(int rank, int code) {
  return {rank, WorkerEnd::How::kExited, code};
}
inline WorkerEnd killed(int rank, int signal) {
  return {rank, WorkerEnd::How::kKilled, signal};
}

}  // namespace lockstep::control
