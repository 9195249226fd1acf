#include "plan/accumulation.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace lockstep::plan {
namespace {

// Whether `left` and `right`, both nodes, are the two operands of a node of the tree over `shards`.
bool are_siblings(ShardRange left, ShardRange right, int shards) {
  if (left.end != right.begin) return false;
  const ShardRange both{left.begin, right.end};
  return held_partials(both, shards).size() == 1 && split_size(both.size()) == left.size();
}

class Planner {
 public:
  Planner(int shards, int banks) : shards_(shards) {
    for (int bank = banks - 1; bank >= 0; --bank) free_.push_back(bank);
  }

  void add(int shard) {
    Accumulation::Step step{.shard = shard};
    auto& held = plan_.held;
    const ShardRange leaf{shard, shard + 1};
    if (!held.empty() && are_siblings(held.back().range, leaf, shards_)) {
      held.back().range.end = shard + 1;
      step.bank = held.back().bank;
    } else {
      if (free_.empty()) step.before.push_back(merge());
      step.bank = free_.back();
      step.begins = true;
      free_.pop_back();
      held.push_back({leaf, step.bank});
    }
    plan_.banks = std::max(plan_.banks, step.bank + 1);
    plan_.steps.push_back(std::move(step));
  }

  Accumulation take() { return std::move(plan_); }

 private:
  // Takes the last siblings that are held, because they are the smallest nodes.
  Accumulation::Addition merge() {
    auto& held = plan_.held;
    for (std::size_t i = held.size() - 1; i > 0; --i) {
      if (!are_siblings(held[i - 1].range, held[i].range, shards_)) continue;
      const Accumulation::Addition addition{held[i - 1].bank, held[i].bank};
      held[i - 1].range.end = held[i].range.end;
      free_.push_back(held[i].bank);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
      return addition;
    }
    LOCKSTEP_CHECK(false, "a worker has a bank for every level of the tree");
    return {};
  }

  int shards_;
  std::vector<int> free_;  // the lowest number last
  Accumulation plan_;
};

}  // namespace

int most_banks(int shards) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(std::max(shards, 1)))) + 1;
}

Accumulation plan_accumulation(ShardRange hosted, int shards, int banks) {
  Planner planner(shards, banks);
  for (int shard = hosted.begin; shard < hosted.end; ++shard) planner.add(shard);
  return planner.take();
}

ShardedReduction plan_sharded_reduction(int shards, int workers) {
  ShardedReduction plan;
  std::vector<Operand> operands;
  for (int worker = 0; worker < workers; ++worker) {
    plan.workers.push_back(
        plan_accumulation(hosted_shards(worker, workers, shards), shards, most_banks(shards)));
    plan.banks = std::max(plan.banks, plan.workers.back().banks);
    for (const auto& held : plan.workers.back().held) operands.push_back({worker, held.range});
  }
  plan.sum = plan_additions({0, shards}, std::move(operands));
  plan.sum.workers = workers;
  return plan;
}

ShardedReduction plan_separate_shards(int shards, int workers) {
  ShardedReduction plan;
  for (int worker = 0; worker < workers; ++worker) {
    Accumulation& one = plan.workers.emplace_back();
    const ShardRange hosted = hosted_shards(worker, workers, shards);
    one.banks = hosted.size();
    plan.banks = std::max(plan.banks, one.banks);
    for (int bank = 0; bank < one.banks; ++bank) {
      const int shard = hosted.begin + bank;
      one.steps.push_back({.shard = shard, .before = {}, .bank = bank, .begins = true});
      one.held.push_back({{shard, shard + 1}, bank});
    }
  }
  plan.sum = plan_of_one_each(shards);
  plan.sum.workers = workers;
  for (int worker = 0; worker < workers; ++worker) {
    for (const auto& held : plan.workers[static_cast<std::size_t>(worker)].held)
      plan.sum.operands[static_cast<std::size_t>(held.range.begin)].worker = worker;
  }
  return plan;
}

std::vector<Reduction> plan_partials(const Accumulation& accumulation, ShardRange hosted,
                                     int shards) {
  std::vector<Reduction> reductions;
  std::size_t next = 0;
  for (const ShardRange& node : held_partials(hosted, shards)) {
    std::vector<Operand> operands;
    while (next < accumulation.held.size() && accumulation.held[next].range.end <= node.end)
      operands.push_back({0, accumulation.held[next++].range});
    reductions.push_back(plan_additions(node, std::move(operands)));
  }
  return reductions;
}

}  // namespace lockstep::plan
