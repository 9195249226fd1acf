// The reduction in two levels, for workers on several hosts: first over the workers of a host, then
// between hosts. Each byte then crosses the network once each way, however many workers a host has.
//
//   node of a host   a node of the tree whose shards are all on one host. The host adds it up before
//                    anything is sent. Only the largest such nodes are sent
//   owner            the worker that adds the nodes of all hosts in its slice
//   handler          on every other host, the worker that adds up that host's nodes in the slice of
//                    an owner, sends them, and gets the sum
//
// Nodes of a host are nodes of the tree. So the sum is the same expression as in one level
// (plan/tree.h), for every number of workers and hosts and for every placement.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/traffic.h"
#include "plan/tree.h"

namespace lockstep::plan {

// One operand of a sum of two levels: partial `index` of a worker of this host, or node `index` of
// another host.
struct LevelOperand {
  bool node = false;
  int of = 0;  // the rank of the worker, or the number of the host
  int index = 0;
  bool operator==(const LevelOperand&) const = default;
};

// A sum, and where its operands come from.
struct LevelSum {
  Reduction plan;
  std::vector<LevelOperand> operands;  // in the plan's order
};

struct HostLevel {
  std::vector<int> workers;     // their ranks, in order
  std::vector<LevelSum> nodes;  // of this host, in shard order, each from partials of its workers
  LevelSum whole;               // what an owner on this host adds
};

struct TwoLevels {
  std::vector<HostLevel> hosts;  // by number
  std::vector<int> host_of;      // by rank
  std::vector<int> place_of;     // by rank: where it is among the workers of its host
  std::vector<int> held;         // by rank: how many partials it holds

  // Who handles an owner's slice on a host.
  int handler(int owner, int host) const;
};

// `one_level` is the reduction over workers; `host_of` has the number of each worker's host. Numbers
// begin at 0, and each host has a worker.
TwoLevels plan_two_levels(const Reduction& one_level, std::vector<int> host_of);

// The slices of a buffer, by rank, as even_bounds() gives them. Every host owns as much as any other,
// because its network has as much to carry; the workers of a host share that.
std::vector<std::size_t> two_level_bounds(std::size_t count, std::size_t element_bytes,
                                          const TwoLevels& levels);

// What each host sends to others and receives from them, by its number. Headers are not counted.
std::vector<Traffic> two_level_traffic(const TwoLevels& levels, std::size_t count,
                                       std::size_t element_bytes);

}  // namespace lockstep::plan
