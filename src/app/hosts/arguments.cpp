#include "app/hosts/arguments.h"

#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/command_line.h"
#include "base/environment.h"
#include "control/launch/hosts_state.h"

namespace lockstep::app {
namespace {

// They belong to --hosts, or it gives each host its own.
constexpr std::array<std::string_view, 6> kNotForHosts = {
    "--hosts", "--ssh", "--remote-lockstep", "--rendezvous", "--workers", "-n"};

}  // namespace

std::vector<std::string> words_for_hosts(const std::vector<std::string>& own) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::string name = own[i].substr(0, own[i].find('='));
    const bool short_count = own[i].starts_with("-n") && own[i] != "-n";  // -n4
    if (short_count) continue;
    if (std::find(kNotForHosts.begin(), kNotForHosts.end(), name) == kNotForHosts.end()) {
      kept.push_back(own[i]);
    } else if (name == own[i]) {
      ++i;  // its value is the next word
    }
  }
  return kept;
}

void add_hosts(CLI::App& parser, control::HostOptions& hosts, control::NodeOptions& nodes) {
  hosts.shell = base::environment("LOCKSTEP_SSH").value_or(control::kRemoteShell);
  // An empty $HOSTS must not start the job on this host alone.
  parser.add_option("--hosts", hosts.list)->check([](const std::string& list) {
    return list.empty() ? "the list is empty; write for example node0:4,node1:4" : "";
  });
  parser.add_option("--ssh", hosts.shell);
  parser.add_option("--remote-lockstep", hosts.lockstep);
  base::add_number(parser, "--nodes", nodes.nodes);
  base::add_number(parser, "--node-rank", nodes.rank);
  parser.add_option("--rendezvous", nodes.rendezvous);
  parser.add_option("--secret-file", nodes.secret_file);
  parser.add_option("--join", nodes.join)->check([](const std::string& address) {
    return address.empty() ? "give HOST:PORT, as in --join node0:29400" : "";
  });
  parser.add_flag("--lifeline", nodes.lifeline)->needs("--nodes");  // what --hosts adds
  parser.get_option("--node-rank")->needs("--nodes");
  parser.get_option("--nodes")->needs("--node-rank");
}

void add_workers(CLI::App& parser, std::optional<control::WorkersAsked>& target) {
  parser.add_option_function<std::string>("-n,--workers", [&target](const std::string& text) {
    target = control::parse_workers("--workers", text);
    if (target) return;
    throw CLI::ValidationError("--workers " + text + ": give a whole number, or MIN:MAX as in 2:8");
  });
}

void check_hosts(const control::RunOptions& options) {
  const control::NodeOptions& nodes = options.nodes;
  if (nodes.nodes != 1 || nodes.rank != 0 || !nodes.secret_file.empty() || nodes.lifeline ||
      !nodes.join.empty()) {
    throw BadInput(
        "--hosts starts every host itself: leave out --nodes, --node-rank, --secret-file and "
        "--join, or leave out --hosts");
  }
  control::parse_hosts(options.hosts.list, options.workers);
}

}  // namespace lockstep::app
