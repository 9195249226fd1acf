#include "control/launch/worker_environment.h"

#include <fmt/format.h>

#include <map>

namespace lockstep::control {
namespace {

using Variables = std::map<std::string, std::string>;

Variables as_variables(const std::vector<std::string>& strings) {
  Variables variables;
  for (const auto& text : strings) {
    const auto equals = text.find('=');
    if (equals != std::string::npos)
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

void set_place(Variables& variables, const JobEnvironment& job, int local_rank) {
  const int rank = job.node_rank * job.local_workers + local_rank;
  const int world = job.nodes * job.local_workers;
  const auto set = [&](const char* name, int value) { variables[name] = fmt::to_string(value); };
  set("RANK", rank);
  set("LOCAL_RANK", local_rank);
  set("WORLD_SIZE", world);
  set("LOCAL_WORLD_SIZE", job.local_workers);
  set("GROUP_RANK", job.node_rank);
  set("GROUP_WORLD_SIZE", job.nodes);
  set("ROLE_RANK", rank);
  set("ROLE_WORLD_SIZE", world);
  variables["ROLE_NAME"] = "default";
}

// PyTorch's env:// rendezvous lets rank 0 serve MASTER_PORT, unless an agent's store is announced:
// ours speaks another protocol, so an announcement inherited from a torchrun around us must not
// stay.
void set_torchrun(Variables& variables, const JobEnvironment& job) {
  variables["MASTER_ADDR"] = job.master_addr;
  variables["MASTER_PORT"] = fmt::to_string(job.master_port);
  variables["TORCHELASTIC_RESTART_COUNT"] = "0";
  variables["TORCHELASTIC_MAX_RESTARTS"] = "0";
  variables["TORCHELASTIC_RUN_ID"] = job.run_id;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  variables.erase("TORCHELASTIC_ERROR_FILE");
  variables.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
}

void set_lockstep(Variables& variables, const JobEnvironment& job) {
  variables["LOCKSTEP_RENDEZVOUS"] = job.rendezvous;
  variables["LOCKSTEP_SECRET_FD"] = fmt::to_string(job.secret_fd);
  variables["LOCKSTEP_LOSS_FD"] = fmt::to_string(job.loss_fd);
  variables.erase("LOCKSTEP_SECRET_FILE");
  if (job.timeout_s) variables["LOCKSTEP_TIMEOUT"] = fmt::to_string(*job.timeout_s);
  if (!job.engine.empty()) variables["LOCKSTEP_ENGINE"] = job.engine;
  if (!job.device.empty()) variables["LOCKSTEP_DEVICE"] = job.device;
}

// Workers share the host's cores: a thread pool of every core in each of them makes all slower.
void set_threads(Variables& variables, const JobEnvironment& job) {
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
    if (job.threads) {
      variables[name] = fmt::to_string(*job.threads);
    } else {
      variables.emplace(name, "1");
    }
  }
}

}  // namespace

std::vector<std::string> worker_environment(const std::vector<std::string>& inherited,
                                            const JobEnvironment& job, int local_rank) {
  Variables variables = as_variables(inherited);
  set_place(variables, job, local_rank);
  set_torchrun(variables, job);
  set_lockstep(variables, job);
  set_threads(variables, job);
  for (const auto& [name, value] : job.variables) variables[name] = value;

  std::vector<std::string> strings;
  strings.reserve(variables.size());
  for (const auto& [name, value] : variables) strings.push_back(fmt::format("{}={}", name, value));
  return strings;
}

}  // namespace lockstep::control
