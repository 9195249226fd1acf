// The environment of each worker: what torchrun sets, what join() reads, and sane thread counts.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::control {

// What all workers of one host share.
struct JobEnvironment {
  int local_workers = 1;
  int nodes = 1;
  int node_rank = 0;
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
  std::string device;
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
