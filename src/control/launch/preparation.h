// Everything that can fail is tried before the first process is started.
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/fd.h"
#include "control/launch/keeper.h"
#include "control/launch/options.h"
#include "control/launch/program.h"
#include "control/rendezvous/listener.h"
#include "control/rendezvous/loss.h"

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

}  // namespace lockstep::control
