// What the launchers of several hosts say to each other. They meet at the port of node 0 by the same proof and frames as
// workers (message.h), and the connection stays as long as the job.
//
//   launcher of a node              launcher of node 0
//   NodeJoin  ─────────────────────▶             who it is, and what must agree
//             ◀─────────────────────  NodeStart    when every node has come        (or NodeVerdict: it cannot begin)
//                                                  or, to a host that joins later, when the job has room for it
//   NodeEvent ────────────────────▶             what happens to its workers
//             ◀─────────────────────  NodeOrders   what to do about it
//             ◀─────────────────────  NodeVerdict  when the workers of every node have ended
//   Beat      ◀────────────────────▶  Beat         every second: silence means that the host is lost
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::control {

// A launcher presents itself. All must agree on nodes, build and job.
struct NodeJoin {
  std::uint32_t node = 0;
  std::uint32_t nodes = 0;  // 0: it joins a job that runs, which gives it a number
  std::uint32_t workers = 0;
  std::string build;
  std::string job;  // "run train", "train"
  std::string host;
  std::uint32_t pid = 0;
  std::string problem;  // why it cannot start its workers; empty: it can
  std::int32_t code = 0;
  std::string faults = {};  // LOCKSTEP_FAULTS there. Node 0's are for all nodes

  bool operator==(const NodeJoin&) const = default;
};

struct NodeShare {
  std::string host;
  std::uint32_t workers = 0;

  bool operator==(const NodeShare&) const = default;
};

// Every node is here: start the workers.
struct NodeStart {
  std::string
      name;  // of the job. The secret of its workers comes from it and from the launchers' secret: neither travels
  std::string rendezvous;  // of the workers
  std::string master;      // the host of node 0 as the others reach it
  std::uint32_t master_port = 0;
  std::vector<NodeShare> shares;       // of every node, by its number
  std::vector<std::string> words;      // arguments of the workers; none: each node has its own
  std::vector<std::string> variables;  // "KEY=VALUE", likewise; but faults on purpose are for all

  bool operator==(const NodeStart&) const = default;
};

struct NodeEvent {
  enum class Kind : std::uint8_t {
    kKeeperEvent = 1,   // as KeeperEvent
    kLoss = 2,          // rank, value: whom it lost
    kSignal = 3,        // value: the signal that this launcher got
    kOutputClosed = 4,  // value: errno
    kKeeperGone = 5,    // value: wait status. Nothing of the job is left on this host
    kExpelled = 6,  // rank; value: for how many milliseconds it has been silent. It is to be ended
  };
  Kind kind = Kind::kKeeperEvent;
  std::int32_t keeper_kind = 0;
  std::int32_t rank = -1;
  std::int32_t pid = 0;
  std::int32_t value = 0;

  bool operator==(const NodeEvent&) const = default;
};

struct NodeOrders {
  std::vector<std::int32_t> signals;
  bool release = false;
  // Of a job whose workers may leave and join. Ranks of all hosts: each launcher takes its own.
  std::vector<std::int32_t> start = {};  // replacements of these
  std::vector<std::int32_t> kill = {};
  std::int32_t newcomers = -1;  // workers that wait to join; −1: as before

  bool operator==(const NodeOrders&) const = default;
};

// How the job ended, or why it cannot begin.
struct NodeVerdict {
  std::int32_t code = 0;
  std::uint8_t cause = 0;  // JobState::Cause
  bool cut_short = false;
  std::uint32_t overtime = 0;  // workers that had to be killed
  std::string what;            // one line about a failure; empty: none
  std::int32_t speaker = -1;   // the rank whose last lines belong to it; -1: nobody
  bool witness = false;        // it has only seen the failure

  bool operator==(const NodeVerdict&) const = default;
};

struct Beat {
  bool operator==(const Beat&) const = default;
};

}  // namespace lockstep::control
