// What the launcher does before it starts the first process. Everything that can fail is tried here: a job that cannot
// run says so at once, and there is nothing to clean up.
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "control/launch/keeper.h"
#include "control/launch/node_roster.h"
#include "control/launch/options.h"
#include "control/launch/program.h"
#include "control/rendezvous/loss.h"
#include "control/rendezvous/news.h"
#include "control/rendezvous/sockets.h"

namespace lockstep::control {

// How the launcher's process was before it was set up; workers get it back.
struct OriginalProcess {
  rlimit open_files{};
  sigset_t signal_mask{};
};

// Makes this process fit to be a launcher. Its standard descriptors are open, it may open enough
// files, the signals that it reads from a descriptor, SIGPIPE and SIGXFSZ are blocked, and orphans become its children.
OriginalProcess set_up_process(const RunOptions& options, const HostMap& map);

// The signals to forward. Not those that were ignored from the start, as SIGHUP under nohup.
std::vector<int> signals_to_forward();

// What stands in front of a line of a worker, which is counted on this host from 0.
using LinePrefix = std::function<std::string(int worker, bool colour)>;

struct LogFile {
  std::string path;
  base::Fd file;
};

// The network interface or address that the user named for this host; empty if none.
std::string interface_of(const RunOptions& options);

// What all hosts of a job have in common, made by node 0: a name, and where its workers meet. `listener`
// is where node 0 serves them: on this host if it is the only one.
NodeStart make_start(const RunOptions& options, const HostMap& map, Listener& listener);

// All that a job needs on this host, ready to be used.
struct Preparation {
  base::Fd sealed_secret;
  LossChannel losses;
  std::optional<NewsPage> news;  // of a job whose workers may leave and join
  LinePrefix prefix;
  std::vector<LogFile> logs;  // two per worker, stdout then stderr; empty without --log-dir
  KeeperPlan plan;
};

// BadInput when the log folder cannot be written; Unavailable when the host has no descriptors
// left.
Preparation prepare(const RunOptions& options, const Program& program,
                    const OriginalProcess& original, const HostMap& map, const NodeStart& start,
                    const std::string& secret);

// What the user can give for all workers as variables: --threads, --engine and the like.
std::vector<std::pair<std::string, std::string>> as_variables(const RunOptions& options);

// A port for the program's own rendezvous (MASTER_PORT). It was free a moment ago; nobody holds it.
int free_port();

// What decides the environment of the workers, the same for all: what torchrun sets, what join()
// reads, and numbers of threads.
struct JobEnvironment {
  HostMap map;
  NodeStart
      start;  // MASTER_PORT is for the program's own rendezvous; nothing of ours listens there
  int secret_fd = -1;
  int loss_fd = -1;
  int news_fd = -1;  // none: workers may not leave
  int max_restarts = 0;
  std::vector<std::pair<std::string, std::string>> variables;  // of the user
};

// "KEY=VALUE" strings for the worker of this rank, which is started now.
//
// A variable is taken from the first of these that has it: options such as --env, the launcher, what was exported.
// Numbers of threads are the exception: an exported number wins over the launcher's default of 1, and
// loses only to --threads.
std::vector<std::string> worker_environment(const std::vector<std::string>& inherited,
                                            const JobEnvironment& job, int rank,
                                            const WorkerStart& now);

}  // namespace lockstep::control
