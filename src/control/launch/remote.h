// `--hosts node0:4,node1:4`: starts `lockstep run --nodes …` on every host by a remote shell, ssh if no other is named.
//
//   lockstep run --hosts     the coordinator: its "workers" are remote shells, one for each host
//     └─ lockstep-keeper
//          ├─ ssh node0 … lockstep run --node-rank 0 --lifeline
//          └─ ssh node1 … lockstep run --node-rank 1 --lifeline
//
// Standard input of each remote shell is a lifeline. First it carries the secret of the launchers, so that no argument
// and no file does; then, to node 0, a byte for each signal to pass on, and to all a zero every second. If it ends, or is silent, the
// launcher there ends everything: nothing outlives a killed coordinator, a killed ssh or a cut network.
#pragma once

#include <string>
#include <vector>

#include "control/launch/hosts_state.h"
#include "control/launch/options.h"

namespace lockstep::control {

// Words of `lockstep` on every host: `before` come before the options that differ from host to host, `after` behind
// them.
struct RemoteWords {
  std::vector<std::string> before;
  std::vector<std::string> after;
};

// Runs the job on the hosts of options.hosts and returns its exit code, as run_job() does.
int run_on_hosts(const RunOptions& options, const RemoteWords& words);

// The command line of the launcher on one host, for a shell there.
std::string remote_command(const RunOptions& options, const RemoteWords& words,
                           const std::vector<HostSpec>& hosts, int node);

// One word of a shell, whatever is in it.
std::string shell_word(const std::string& text);

}  // namespace lockstep::control
