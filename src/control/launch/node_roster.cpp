#include "control/launch/node_roster.h"

#include <fmt/format.h>

#include <utility>

#include "control/launch/options.h"

namespace lockstep::control {
namespace {

std::string node_name(int node, const std::string& host) {
  return fmt::format("node {} ({})", node, host);
}

}  // namespace

int HostMap::first_rank(int of_node) const {
  int first = 0;
  for (int before = 0; before < of_node; ++before)
    first += static_cast<int>(shares[static_cast<std::size_t>(before)].workers);
  return first;
}

int HostMap::node_of(int rank) const {
  int of_node = 0;
  while (of_node + 1 < nodes() && first_rank(of_node + 1) <= rank) ++of_node;
  return of_node;
}

std::vector<int> HostMap::ranks_of(int of_node) const {
  std::vector<int> ranks;
  for (int rank = first_rank(of_node); rank < first_rank(of_node + 1); ++rank)
    ranks.push_back(rank);
  return ranks;
}

std::string HostMap::name_of(int of_node) const {
  return node_name(of_node, shares[static_cast<std::size_t>(of_node)].host);
}

NodeRoster::NodeRoster(NodeJoin node_0) {
  joins_.emplace(0, std::move(node_0));
}

std::optional<CannotBegin> NodeRoster::add(ConnectionId from, const NodeJoin& join, TimePoint now) {
  if (begun_) {
    return CannotBegin{
        fmt::format("the job at this rendezvous has begun with all its {} nodes; for "
                    "another job choose another port in --rendezvous",
                    joins_.at(0).nodes),
        kUsage, true};
  }
  const int node = static_cast<int>(join.node);
  if (auto why = objection(join)) return CannotBegin{std::move(*why), kUsage};
  joins_.emplace(join.node, join);
  links_.emplace(from, Link{node, now});
  if (const NodeJoin& first = joins_.at(0); !first.problem.empty())
    return CannotBegin{fmt::format("{}: {}", name_of(0), first.problem), first.code};
  if (!join.problem.empty())
    return CannotBegin{fmt::format("{}: {}", name_of(node), join.problem), join.code};
  if (whole() && map().world() > kMostWorkers) {
    return CannotBegin{
        fmt::format("{} workers on all nodes together are too many; ask for at most {}",
                    map().world(), kMostWorkers),
        kUsage};
  }
  return std::nullopt;
}

std::optional<std::string> NodeRoster::objection(const NodeJoin& join) const {
  const NodeJoin& first = joins_.at(0);
  const std::string who = node_name(static_cast<int>(join.node), join.host);
  if (join.nodes != first.nodes) {
    return fmt::format(
        "{} was started with --nodes {}, {} with --nodes {}; give the same everywhere", who,
        join.nodes, name_of(0), first.nodes);
  }
  if (auto why = disagreement(join, who)) return why;
  if (const auto other = joins_.find(join.node); other != joins_.end()) {
    return fmt::format(
        "--node-rank {} was given twice, on {} (pid {}) and on {} (pid {}); count hosts from 0 to "
        "{}",
        join.node, other->second.host, other->second.pid, join.host, join.pid, first.nodes - 1);
  }
  return std::nullopt;
}

std::optional<CannotBegin> NodeRoster::objection_to_late(const NodeJoin& join) const {
  if (auto why = disagreement(join, fmt::format("the host {} that wants to join", join.host)))
    return CannotBegin{std::move(*why), kUsage, true};
  if (map().world() + static_cast<int>(join.workers) > kMostWorkers || join.workers == 0) {
    return CannotBegin{
        fmt::format("the job has had {} places for workers, with those of hosts that were lost, "
                    "and {} more are too many; it can have {}",
                    map().world(), join.workers, kMostWorkers),
        kUsage, true};
  }
  if (joins_.size() >= static_cast<std::size_t>(kMostHosts))
    return CannotBegin{fmt::format("the job has had {} hosts, the most", kMostHosts), kUsage, true};
  return std::nullopt;
}

int NodeRoster::take_in(ConnectionId from, const NodeJoin& join, TimePoint now) {
  const auto node = static_cast<std::uint32_t>(joins_.size());
  joins_.emplace(node, join);
  links_.emplace(from, Link{static_cast<int>(node), now});
  return static_cast<int>(node);
}

std::optional<std::string> NodeRoster::disagreement(const NodeJoin& join,
                                                    const std::string& who) const {
  const NodeJoin& first = joins_.at(0);
  if (join.build != first.build) {
    return fmt::format("{} has Lockstep {}, {} has {}; install one version on every host", who,
                       join.build, name_of(0), first.build);
  }
  if (join.job != first.job) {
    return fmt::format(
        "{} wants `lockstep {}`, {} `lockstep {}`; give the same command everywhere, and each job "
        "a "
        "port of its own",
        who, join.job, name_of(0), first.job);
  }
  if (!join.faults.empty() && join.faults != first.faults) {
    return fmt::format(
        "{} was given the faults {}, {} {}; give them to node 0 alone, for all workers, or the "
        "same everywhere",
        who, join.faults, name_of(0), first.faults.empty() ? "none" : first.faults);
  }
  return std::nullopt;
}

std::vector<int> NodeRoster::missing() const {
  std::vector<int> nodes;
  for (std::uint32_t node = 0; node < joins_.at(0).nodes; ++node) {
    if (!joins_.contains(node)) nodes.push_back(static_cast<int>(node));
  }
  return nodes;
}

HostMap NodeRoster::map() const {
  HostMap map;
  for (const auto& [node, join] : joins_) map.shares.push_back({join.host, join.workers});
  return map;
}

std::optional<int> NodeRoster::node_of(ConnectionId connection) const {
  const auto found = links_.find(connection);
  return found == links_.end() ? std::nullopt : std::optional(found->second.node);
}

std::vector<ConnectionId> NodeRoster::connections() const {
  std::vector<ConnectionId> all;
  for (const auto& [connection, link] : links_) all.push_back(connection);
  return all;
}

void NodeRoster::heard(ConnectionId from, TimePoint now) {
  const auto found = links_.find(from);
  if (found != links_.end()) found->second.heard = now;
}

std::vector<int> NodeRoster::silent(TimePoint now, std::chrono::milliseconds limit) const {
  std::vector<int> nodes;
  for (const auto& [connection, link] : links_) {
    if (now - link.heard > limit) nodes.push_back(link.node);
  }
  return nodes;
}

void NodeRoster::remove(int node) {
  std::erase_if(links_, [node](const auto& entry) { return entry.second.node == node; });
}

std::string NodeRoster::name_of(int node) const {
  return node_name(node, joins_.at(static_cast<std::uint32_t>(node)).host);
}

}  // namespace lockstep::control
