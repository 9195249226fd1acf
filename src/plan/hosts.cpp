#include "plan/hosts.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep::plan {
namespace {

// Cuts the tree into the largest nodes that one host holds, in shard order.
class NodeFinder {
 public:
  NodeFinder(const Reduction& one_level, const std::vector<int>& host_of)
      : one_level_(one_level), host_of_(host_of) {}

  struct Found {
    int host = 0;
    ShardRange range;
    std::size_t first = 0;  // its operands, by their numbers in the reduction of one level
    std::size_t last = 0;   // and the end
  };

  std::vector<Found> run() {
    visit({0, one_level_.shards});
    return std::move(found_);
  }

 private:
  void visit(ShardRange node) {
    const auto& operands = one_level_.operands;
    const std::size_t first = next_;
    const int host = host_of_[static_cast<std::size_t>(operands[first].worker)];
    std::size_t last = first;
    bool alone = true;
    for (; last < operands.size() && operands[last].range.end <= node.end; ++last)
      alone = alone && host_of_[static_cast<std::size_t>(operands[last].worker)] == host;
    if (alone) {
      found_.push_back({host, node, first, last});
      next_ = last;
      return;
    }
    const int middle = node.begin + split_size(node.size());
    visit({node.begin, middle});
    visit({middle, node.end});
  }

  const Reduction& one_level_;
  const std::vector<int>& host_of_;
  std::size_t next_ = 0;
  std::vector<Found> found_;
};

class Levels {
 public:
  Levels(const Reduction& one_level, TwoLevels& levels) : one_level_(one_level), levels_(levels) {}

  void write() {
    const auto found = NodeFinder(one_level_, levels_.host_of).run();
    for (const auto& node : found) {
      std::vector<LevelOperand> operands;
      add_partials(node, operands);
      levels_.hosts[static_cast<std::size_t>(node.host)].nodes.push_back(
          sum_of(node.range, std::move(operands)));
    }
    for (std::size_t host = 0; host < levels_.hosts.size(); ++host)
      levels_.hosts[host].whole = whole_on(static_cast<int>(host), found);
  }

 private:
  LevelSum whole_on(int host, const std::vector<NodeFinder::Found>& found) const {
    std::vector<LevelOperand> operands;
    std::vector<int> sent(levels_.hosts.size());
    for (const auto& node : found) {
      if (node.host == host) {
        add_partials(node, operands);
      } else {
        operands.push_back({true, node.host, sent[static_cast<std::size_t>(node.host)]++});
      }
    }
    return sum_of({0, one_level_.shards}, std::move(operands));
  }

  void add_partials(const NodeFinder::Found& node, std::vector<LevelOperand>& operands) const {
    for (std::size_t i = node.first; i < node.last; ++i) {
      const int worker = one_level_.operands[i].worker;
      operands.push_back({false, worker, static_cast<int>(i) - one_level_.first_of(worker)});
    }
  }

  LevelSum sum_of(ShardRange range, std::vector<LevelOperand> operands) const {
    std::vector<Operand> ranges;
    ranges.reserve(operands.size());
    for (const LevelOperand& operand : operands) ranges.push_back({operand.of, range_of(operand)});
    return {plan_additions(range, std::move(ranges)), std::move(operands)};
  }

  ShardRange range_of(const LevelOperand& operand) const {
    const auto index = static_cast<std::size_t>(operand.index);
    if (!operand.node)
      return one_level_.operands[static_cast<std::size_t>(one_level_.first_of(operand.of)) + index]
          .range;
    const auto& sums = levels_.hosts[static_cast<std::size_t>(operand.of)].nodes[index].plan;
    return {sums.operands.front().range.begin, sums.operands.back().range.end};
  }

  const Reduction& one_level_;
  TwoLevels& levels_;
};

}  // namespace

TwoLevels plan_two_levels(const Reduction& one_level, std::vector<int> host_of) {
  LOCKSTEP_CHECK(static_cast<int>(host_of.size()) == one_level.workers, "each worker has a host");
  TwoLevels levels;
  levels.host_of = std::move(host_of);
  levels.hosts.resize(
      static_cast<std::size_t>(*std::max_element(levels.host_of.begin(), levels.host_of.end())) +
      1);
  for (std::size_t rank = 0; rank < levels.host_of.size(); ++rank) {
    auto& workers = levels.hosts[static_cast<std::size_t>(levels.host_of[rank])].workers;
    levels.place_of.push_back(static_cast<int>(workers.size()));
    workers.push_back(static_cast<int>(rank));
    levels.held.push_back(one_level.count_of(static_cast<int>(rank)));
  }
  Levels(one_level, levels).write();
  return levels;
}

int TwoLevels::handler(int owner, int host) const {
  const auto& workers = hosts[static_cast<std::size_t>(host)].workers;
  const auto place = static_cast<std::size_t>(place_of[static_cast<std::size_t>(owner)]);
  return workers[place % workers.size()];
}

std::vector<std::size_t> two_level_bounds(std::size_t count, std::size_t element_bytes,
                                          const TwoLevels& levels) {
  const std::size_t granule = line_elements(element_bytes);
  const std::vector<std::size_t> of_hosts =
      even_bounds(count, static_cast<int>(levels.hosts.size()), granule);
  std::vector<std::size_t> counts(levels.host_of.size());
  for (std::size_t host = 0; host < levels.hosts.size(); ++host) {
    const std::vector<int>& workers = levels.hosts[host].workers;
    const auto bounds =
        even_bounds(of_hosts[host + 1] - of_hosts[host], static_cast<int>(workers.size()), granule);
    for (std::size_t i = 0; i < workers.size(); ++i)
      counts[static_cast<std::size_t>(workers[i])] = bounds[i + 1] - bounds[i];
  }
  std::vector<std::size_t> bounds{0};
  for (const std::size_t part : counts) bounds.push_back(bounds.back() + part);
  return bounds;
}

std::vector<Traffic> two_level_traffic(const TwoLevels& levels, std::size_t count,
                                       std::size_t element_bytes) {
  const auto bounds = two_level_bounds(count, element_bytes, levels);
  const std::size_t whole = count * element_bytes;
  std::size_t nodes = 0;
  for (const HostLevel& host : levels.hosts) nodes += host.nodes.size();
  std::vector<Traffic> traffic;
  for (const HostLevel& host : levels.hosts) {
    std::size_t own = 0;
    for (const int worker : host.workers) {
      const auto rank = static_cast<std::size_t>(worker);
      own += (bounds[rank + 1] - bounds[rank]) * element_bytes;
    }
    const std::size_t others = levels.hosts.size() - 1;
    const std::size_t held = host.nodes.size();
    traffic.push_back({held * (whole - own) + others * own, (nodes - held) * own + (whole - own)});
  }
  return traffic;
}

}  // namespace lockstep::plan
