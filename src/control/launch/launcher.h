// `lockstep run`: starts the workers of this host, shows what they print, and ends with them.
#pragma once

#include "control/launch/options.h"

namespace lockstep::control {

// Runs the job and returns the exit code: 0 when every worker exited with 0; the code of the worker
// that the failure began with, or 128 + the signal that killed it; the stopped_code when workers stopped
// early, in order; 128 + the signal that ended the launcher; 126 or 127 when the program cannot run. When it returns, none of the job's processes is left.
//
// Call it once, from a process with one thread and no other children: it blocks signals, becomes a
// child subreaper and forks. BadInput or Unavailable, before anything has been started, when the
// options or the host do not allow the job.
int run_job(const RunOptions& options);

}  // namespace lockstep::control
