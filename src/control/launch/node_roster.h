// Which launchers take part in a job on several hosts. Pure: node 0 asks, and time is an argument.
//
//   HostMap        what one launcher knows of all hosts: who has which ranks
//   NodeRoster   node 0's list of the launchers, from the first that comes to the last that ends
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "control/rendezvous/message.h"

namespace lockstep::control {

// The hosts of a job, and which of them this is.
struct HostMap {
  int node = 0;
  std::vector<NodeShare> shares;  // of every node, by its number

  int nodes() const { return static_cast<int>(shares.size()); }
  int workers() const { return static_cast<int>(shares[static_cast<std::size_t>(node)].workers); }
  int world() const { return first_rank(nodes()); }
  int first_rank() const { return first_rank(node); }
  int first_rank(int of_node) const;
  int node_of(int rank) const;
  bool here(int rank) const { return is_rank(rank) && node_of(rank) == node; }
  bool is_rank(int rank) const { return rank >= 0 && rank < world(); }
  std::vector<int> ranks_of(int of_node) const;

  // "node 1 (HOST)"
  std::string name_of(int of_node) const;
};

inline constexpr int kUsage = 2;  // the exit code of a wrong option

// Why a job cannot begin: one line, and the exit code of every launcher.
struct CannotBegin {
  std::string why;
  int code = 1;
  bool newcomer_only = false;  // the others are not concerned: they have begun
};

// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none thrown; what is wrong is an answer.
// Ownership: plain values.
class NodeRoster {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit NodeRoster(NodeJoin node_0);

  // A launcher presents itself. Nothing if it belongs to the job.
  std::optional<CannotBegin> add(ConnectionId from, const NodeJoin& join, TimePoint now);

  // A launcher wants to join the job that runs. Nothing if it fits: take_in() then adds it, as the next node.
  std::optional<CannotBegin> objection_to_late(const NodeJoin& join) const;
  int take_in(ConnectionId from, const NodeJoin& join, TimePoint now);

  // Everybody has come, and the job begins: later ones are turned away.
  bool whole() const { return joins_.size() == joins_.at(0).nodes; }
  void begin() { begun_ = true; }
  std::vector<int> missing() const;
  HostMap map() const;

  // The node of this connection; nothing for one that does not belong to the job, or not any more.
  std::optional<int> node_of(ConnectionId connection) const;
  std::vector<ConnectionId> connections() const;

  // Nothing was heard of these since `limit` before `now`.
  void heard(ConnectionId from, TimePoint now);
  std::vector<int> silent(TimePoint now, std::chrono::milliseconds limit) const;

  // This node is lost, or has left.
  void remove(int node);

  // "node 1 (HOST)"
  std::string name_of(int node) const;

 private:
  struct Link {
    int node = 0;
    TimePoint heard;
  };

  std::optional<std::string> objection(const NodeJoin& join) const;
  std::optional<std::string> disagreement(const NodeJoin& join, const std::string& who) const;

  std::map<std::uint32_t, NodeJoin> joins_;  // by node
  std::map<ConnectionId, Link> links_;
  bool begun_ = false;
};

}  // namespace lockstep::control
