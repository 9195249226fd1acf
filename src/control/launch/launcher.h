// `lockstep run`: starts the workers of this host, shows what they print, and ends with them.
#pragma once

#include <utility>  // Boost 1.74's Asio uses std::exchange and does not include this

#include <boost/asio/io_context.hpp>
#include <memory>

#include "control/launch/options.h"

namespace lockstep::control {

class Judge;
struct Meeting;
struct Preparation;

// Runs the job and returns the exit code. When it returns, none of the job's processes is left.
//
//   0              every worker exited with 0
//   N, 128 + S     the worker that the failure began with exited with N, or signal S killed it
//   128 + S        signal S told the launcher to end
//   stopped_code   workers stopped early, in order
//   126, 127       the program cannot be executed, or does not exist
//
// If the keeper of an elastic job on one host is killed, the job begins again.
//
// Call it once, from a process with one thread and no other children: it blocks signals, becomes a
// child subreaper and forks. BadInput or Unavailable, before anything has been started, when the
// options or the host do not allow the job.
int run_job(RunOptions options);

// Its last part: starts the keeper, and runs until the judge has spoken.
struct JobEnd {
  int code = 0;
  bool keeper_lost = false;  // nothing else has ended the job
};
JobEnd run_prepared(boost::asio::io_context& context, const RunOptions& options, Meeting& meeting,
                    std::unique_ptr<Judge> judge, Preparation ready);

}  // namespace lockstep::control
