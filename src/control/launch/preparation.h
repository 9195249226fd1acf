// Everything that can fail is tried before the first process is started: a job that cannot run says so at once, and there is
// nothing to clean up.
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

// Makes this process fit to be a launcher: standard descriptors that are open, the signals that
// it handles blocked (and SIGPIPE, SIGCHLD), orphans become its children, enough descriptors.
OriginalProcess set_up_process(const RunOptions& options);

// The signals that are to be forwarded: not those that were ignored from the start, as under nohup.
std::vector<int> signals_to_forward();

struct LogFile {
  std::string path;
  base::Fd file;
};

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

// A port that is free for the program's own rendezvous; nobody holds it.
int free_port();

// The environment of each worker: what torchrun sets, what join() reads, and sane thread counts.

// What all workers of one host share.
struct JobEnvironment {
  int local_workers = 1;
  int hosts = 1;
  int host_rank = 0;
  std::string run_id;
  std::string master_addr =
      "127.0.0.1";  // for the program's own rendezvous; nothing of ours listens there
  int master_port = 0;
  std::string rendezvous;  // ours
  int secret_fd = -1;
  int loss_fd = -1;
  std::optional<int> threads;
  std::optional<int> timeout_s;
  std::string engine;
  std::string device;  // as LOCKSTEP_DEVICE spells it
  std::vector<std::pair<std::string, std::string>> variables;
};

// "KEY=VALUE" strings for the worker with this local rank.
//
// A variable is taken from the first of these that has it: --env, the launcher, what was exported.
// Thread counts are the exception: what was exported wins over the default of 1, and only an
// explicit --threads wins over what was exported.
std::vector<std::string> worker_environment(const std::vector<std::string>& inherited,
                                            const JobEnvironment& job, int local_rank);

}  // namespace lockstep::control
