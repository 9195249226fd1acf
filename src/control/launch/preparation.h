// What the launcher does before it starts the first process. Everything that can fail is tried here: a job that cannot
// run says so at once, and there is nothing to clean up.
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "control/launch/keeper.h"
#include "control/launch/options.h"
#include "control/launch/program.h"
#include "control/rendezvous/loss.h"
#include "control/rendezvous/sockets.h"

namespace lockstep::control {

// How the launcher's process was before it was set up; workers get it back.
struct OriginalProcess {
  rlimit open_files{};
  sigset_t signal_mask{};
};

// Makes this process fit to be a launcher. Its standard descriptors are open, it may open enough
// files, the signals that it reads from a descriptor, SIGPIPE and SIGXFSZ are blocked, and orphans become its children.
OriginalProcess set_up_process(const RunOptions& options);

// The signals to forward. Not those that were ignored from the start, as SIGHUP under nohup.
std::vector<int> signals_to_forward();

struct LogFile {
  std::string path;
  base::Fd file;
};

// All that a job needs, ready to be used.
struct Preparation {
  Listener listener;
  std::string secret;
  base::Fd sealed_secret;
  LossChannel losses;
  std::vector<LogFile> logs;  // two per worker, stdout then stderr; empty without --log-dir
  KeeperPlan plan;
};

// BadInput when the log folder cannot be written; Unavailable when the host has no descriptors
// left.
Preparation prepare(const RunOptions& options, const Program& program,
                    const OriginalProcess& original);

// A port for the program's own rendezvous (MASTER_PORT). It was free a moment ago; nobody holds it.
int free_port();

// What decides the environment of the workers, the same for all: what torchrun sets, what join()
// reads, and numbers of threads.
struct JobEnvironment {
  int workers = 1;
  std::string run_id;
  int master_port = 0;     // for the program's own rendezvous; nothing of ours listens there
  std::string rendezvous;  // ours
  int secret_fd = -1;
  int loss_fd = -1;
  std::optional<int> threads;
  std::optional<int> timeout_s;
  std::string engine;
  std::string device;  // as LOCKSTEP_DEVICE spells it
  std::vector<std::pair<std::string, std::string>> variables;
};

// "KEY=VALUE" strings for the worker of this rank.
//
// A variable is taken from the first of these that has it: --env, the launcher, what was exported.
// Numbers of threads are the exception: an exported number wins over the launcher's default of 1, and
// loses only to --threads.
std::vector<std::string> worker_environment(const std::vector<std::string>& inherited,
                                            const JobEnvironment& job, int rank);

}  // namespace lockstep::control
