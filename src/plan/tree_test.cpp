#include "plan/tree.h"

#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <utility>

#include "plan/accumulation.h"
#include "plan/expressions.h"

namespace lockstep::plan {
namespace {

constexpr int kMostShards = 64;

// The same as a binary counter: equal sizes carry, and what is left folds smallest first.
int by_counter(Expressions& all, int begin, int end) {
  std::vector<std::pair<int, int>> digits;  // expression, size
  const auto fold = [&] {
    const auto [right, right_size] = digits.back();
    digits.pop_back();
    auto& [left, left_size] = digits.back();
    left = all.sum(left, right);
    left_size += right_size;
  };
  for (int s = begin; s < end; ++s) {
    digits.emplace_back(all.shard(s), 1);
    while (digits.size() > 1 && digits.back().second == digits[digits.size() - 2].second) fold();
  }
  while (digits.size() > 1) fold();
  return digits.back().first;
}

// What the owner of a slice computes when every worker has computed its partials.
int play(Expressions& all, const Reduction& plan) {
  std::vector<int> values;
  for (const Operand& operand : plan.operands) {
    values.push_back(by_counter(all, operand.range.begin, operand.range.end));
  }
  return all.add_up(plan, std::move(values));
}

void collect_nodes(int begin, int end, std::vector<ShardRange>& nodes) {
  nodes.push_back({begin, end});
  if (end - begin == 1) return;
  int half = 1;
  while (half * 2 < end - begin) half *= 2;
  collect_nodes(begin, begin + half, nodes);
  collect_nodes(begin + half, end, nodes);
}

// fewest[b][e]: how few nodes cover shards b … e−1, found by trying all.
std::vector<std::vector<int>> fewest_covers(int shards, const std::vector<ShardRange>& nodes) {
  std::vector<std::vector<int>> fewest(shards + 1, std::vector<int>(shards + 1, shards));
  for (int begin = shards; begin >= 0; --begin) {
    fewest[begin][begin] = 0;
    for (const ShardRange& node : nodes) {
      if (node.begin != begin) continue;
      for (int end = node.end; end <= shards; ++end) {
        fewest[begin][end] = std::min(fewest[begin][end], 1 + fewest[node.end][end]);
      }
    }
  }
  return fewest;
}

template <typename Check>
void for_every_world(Check check) {
  for (int shards = 1; shards <= kMostShards; ++shards) {
    for (int workers = 1; workers <= shards; ++workers) check(shards, workers);
  }
}

TEST(Tree, SplitsAtTheLargestPowerOfTwoBelowTheSize) {
  EXPECT_EQ(split_size(2), 1);
  EXPECT_EQ(split_size(3), 2);
  EXPECT_EQ(split_size(4), 2);
  EXPECT_EQ(split_size(5), 4);
  EXPECT_EQ(split_size(64), 32);
  EXPECT_EQ(split_size(65), 64);
  EXPECT_EQ(split_size(1 << 30), 1 << 29);
}

TEST(Tree, RecursionAndBinaryCounterAreTheSameExpression) {
  Expressions all;
  for (int shards = 1; shards <= 300; ++shards) {
    EXPECT_EQ(by_definition(all, 0, shards), by_counter(all, 0, shards)) << shards << " shards";
  }
}

TEST(ShardMap, IsContiguousEvenAndComplete) {
  for_every_world([](int shards, int workers) {
    int next = 0;
    int previous = shards;
    for (int worker = 0; worker < workers; ++worker) {
      const ShardRange range = hosted_shards(worker, workers, shards);
      ASSERT_EQ(range.begin, next);
      ASSERT_GE(range.size(), shards / workers);
      ASSERT_LE(range.size(), std::min(previous, (shards + workers - 1) / workers));
      next = range.end;
      previous = range.size();
    }
    ASSERT_EQ(next, shards);
  });
}

TEST(ShardMap, WorldsThatCannotBeAreBadInput) {
  EXPECT_THROW(hosted_shards(0, 0, 4), BadInput);
  EXPECT_THROW(plan_reduction(4, 5), BadInput);
  EXPECT_THROW(plan_reduction(0, 1), BadInput);
  EXPECT_THROW(halving_doubling_verdict(3, -1), BadInput);
}

TEST(Partials, AreTheFewestNodesThatMakeUpTheRange) {
  for (int shards = 1; shards <= kMostShards; ++shards) {
    std::vector<ShardRange> nodes;
    collect_nodes(0, shards, nodes);
    const auto fewest = fewest_covers(shards, nodes);
    for (int begin = 0; begin <= shards; ++begin) {
      for (int end = begin; end <= shards; ++end) {
        const auto partials = held_partials({begin, end}, shards);
        int next = begin;
        for (const ShardRange& partial : partials) {
          ASSERT_EQ(partial.begin, next);
          ASSERT_EQ(std::count(nodes.begin(), nodes.end(), partial), 1);
          next = partial.end;
        }
        ASSERT_EQ(next, end);
        ASSERT_EQ(static_cast<int>(partials.size()), fewest[begin][end])
            << "[" << begin << ", " << end << ") of " << shards;
      }
    }
  }
}

TEST(Partials, MayBeNodesThatAreNoPowerOfTwo) {
  EXPECT_EQ(held_partials({4, 7}, 7), (std::vector<ShardRange>{{4, 7}}));
  EXPECT_EQ(held_partials({4, 7}, 8), (std::vector<ShardRange>{{4, 6}, {6, 7}}));
  EXPECT_EQ(held_partials({3, 6}, 6), (std::vector<ShardRange>{{3, 4}, {4, 6}}));
  EXPECT_TRUE(held_partials({2, 2}, 7).empty());
}

TEST(ReductionPlan, YieldsTheOneExpressionForEveryNumberOfWorkers) {
  Expressions all;
  for_every_world([&](int shards, int workers) {
    const int expected = by_definition(all, 0, shards);
    ASSERT_EQ(play(all, plan_reduction(shards, workers)), expected)
        << shards << " shards on " << workers << " workers";
  });
}

TEST(ReductionPlan, OperandsAreHeldByTheWorkerThatHostsTheirShards) {
  for_every_world([](int shards, int workers) {
    const Reduction plan = plan_reduction(shards, workers);
    int next = 0;
    for (const Operand& operand : plan.operands) {
      const ShardRange hosted = hosted_shards(operand.worker, workers, shards);
      ASSERT_GE(operand.range.begin, hosted.begin);
      ASSERT_LE(operand.range.end, hosted.end);
      ASSERT_EQ(operand.range.begin, next);
      next = operand.range.end;
    }
    ASSERT_EQ(next, shards);
  });
}

TEST(ReductionPlan, NumbersEachOperandOnceAndUsesNothingBeforeItIsThere) {
  for_every_world([](int shards, int workers) {
    const Reduction plan = plan_reduction(shards, workers);
    const int operands = static_cast<int>(plan.operands.size());
    ASSERT_EQ(static_cast<int>(plan.additions.size()), operands - 1);
    std::vector<int> uses(2 * operands - 1, 0);
    for (int i = 0; i < operands - 1; ++i) {
      const auto [left, right] = plan.additions[i];
      ASSERT_LT(std::max(left, right), operands + i);
      ++uses.at(left);
      ++uses.at(right);
    }
    ASSERT_EQ(std::count(uses.begin(), uses.end() - 1, 1), 2 * operands - 2);
  });
}

TEST(ReductionPlan, FirstAndCountNameTheOperandsOfAWorker) {
  for_every_world([](int shards, int workers) {
    const Reduction plan = plan_reduction(shards, workers);
    int next = 0;
    for (int worker = 0; worker < workers; ++worker) {
      ASSERT_EQ(plan.first_of(worker), next);
      const auto held = held_partials(hosted_shards(worker, workers, shards), shards);
      ASSERT_EQ(plan.count_of(worker), static_cast<int>(held.size()));
      next += plan.count_of(worker);
    }
    ASSERT_EQ(next, static_cast<int>(plan.operands.size()));
  });
}

TEST(HalvingDoubling, IsPossibleExactlyForEqualSinglePartialsOnAPowerOfTwoOfWorkers) {
  for_every_world([](int shards, int workers) {
    bool equal = true;
    for (int worker = 0; worker < workers; ++worker) {
      const auto held = held_partials(hosted_shards(worker, workers, shards), shards);
      equal = equal && held.size() == 1 && held[0].size() * workers == shards;
    }
    const bool power_of_two = (workers & (workers - 1)) == 0;
    const Verdict verdict = halving_doubling_verdict(shards, workers);
    ASSERT_EQ(verdict.possible, power_of_two && equal) << shards << " on " << workers;
    ASSERT_EQ(verdict.reason.empty(), verdict.possible);
  });
}

TEST(HalvingDoubling, SaysWhyItIsNotPossible) {
  EXPECT_EQ(halving_doubling_verdict(6, 3).reason, "3 workers are no power of two");
  EXPECT_EQ(halving_doubling_verdict(6, 4).reason, "6 shards do not divide evenly among 4 workers");
  EXPECT_EQ(halving_doubling_verdict(6, 2).reason, "3 shards per worker are no power of two");
}

// All workers of a halving-doubling all-reduce; elements are expressions.
struct PlayedWorker {
  std::vector<int> elements;
  int low = 0;
  int high = 0;

  std::pair<int, int> half(bool low_half) const {
    const int middle = low + (high - low) / 2;
    return low_half ? std::pair{low, middle} : std::pair{middle, high};
  }
};

std::vector<PlayedWorker> start_play(Expressions& all, int shards, int workers, int elements) {
  std::vector<PlayedWorker> played(workers);
  for (int rank = 0; rank < workers; ++rank) {
    const ShardRange hosted = hosted_shards(rank, workers, shards);
    const int partial = by_counter(all, hosted.begin, hosted.end);
    played[rank] = {std::vector<int>(elements, partial), 0, elements};
  }
  return played;
}

void play_halving(Expressions& all, std::vector<PlayedWorker>& played, std::size_t step) {
  const auto before = played;
  const int workers = static_cast<int>(played.size());
  for (int rank = 0; rank < workers; ++rank) {
    const HalvingStep mine = halving_steps(rank, workers)[step];
    const HalvingStep other = halving_steps(mine.partner, workers)[step];
    ASSERT_EQ(other.partner, rank);
    ASSERT_NE(other.keep_low, mine.keep_low);
    ASSERT_NE(other.partner_is_left, mine.partner_is_left);
    const PlayedWorker& partner = before[mine.partner];
    ASSERT_EQ(partner.low, before[rank].low);
    ASSERT_EQ(partner.high, before[rank].high);
    const auto [low, high] = before[rank].half(mine.keep_low);
    for (int i = low; i < high; ++i) {
      const int own = before[rank].elements[i];
      const int theirs = partner.elements[i];
      played[rank].elements[i] = mine.partner_is_left ? all.sum(theirs, own) : all.sum(own, theirs);
    }
    played[rank].low = low;
    played[rank].high = high;
  }
}

void play_doubling(std::vector<PlayedWorker>& played, std::size_t step) {
  const auto before = played;
  const int workers = static_cast<int>(played.size());
  for (int rank = 0; rank < workers; ++rank) {
    const PlayedWorker& partner = before[halving_steps(rank, workers)[step].partner];
    for (int i = partner.low; i < partner.high; ++i) played[rank].elements[i] = partner.elements[i];
    ASSERT_TRUE(partner.low == before[rank].high || partner.high == before[rank].low);
    played[rank].low = std::min(before[rank].low, partner.low);
    played[rank].high = std::max(before[rank].high, partner.high);
  }
}

void play_and_check(Expressions& all, int shards, int workers, int elements) {
  const int expected = by_definition(all, 0, shards);
  auto played = start_play(all, shards, workers, elements);
  const std::size_t steps = halving_steps(0, workers).size();
  for (std::size_t step = 0; step < steps; ++step) play_halving(all, played, step);
  std::vector<int> owners(elements, 0);
  for (const PlayedWorker& worker : played) {
    for (int i = worker.low; i < worker.high; ++i) {
      ++owners[i];
      ASSERT_EQ(worker.elements[i], expected) << shards << " shards on " << workers;
    }
  }
  ASSERT_EQ(std::count(owners.begin(), owners.end(), 1), elements);
  for (std::size_t step = steps; step-- > 0;) play_doubling(played, step);
  for (const PlayedWorker& worker : played) {
    ASSERT_EQ(std::count(worker.elements.begin(), worker.elements.end(), expected), elements);
  }
}

TEST(HalvingDoubling, YieldsTheOneExpressionWithOneOwnerPerElement) {
  Expressions all;
  int played = 0;
  for (int workers = 1; workers <= kMostShards; workers *= 2) {
    for (int shards = workers; shards <= kMostShards; ++shards) {
      if (!halving_doubling_verdict(shards, workers).possible) continue;
      for (const int elements : {0, 1, 37, 64}) play_and_check(all, shards, workers, elements);
      ++played;
    }
  }
  EXPECT_EQ(played, 64 + 6 + 5 + 4 + 3 + 2 + 1);  // one worker, then 2, 4 … 64
}

// What the banks of a worker hold after its shards have run.
std::vector<int> play_banks(Expressions& all, const Accumulation& plan) {
  std::vector<int> banks(static_cast<std::size_t>(plan.banks), -1);
  for (const Accumulation::Step& step : plan.steps) {
    for (const auto& [into, from] : step.before) {
      banks.at(into) = all.sum(banks.at(into), banks.at(from));
      banks.at(from) = -1;
    }
    int& bank = banks.at(step.bank);
    EXPECT_EQ(bank == -1, step.begins) << "a bank is begun when it is free";
    bank = step.begins ? all.shard(step.shard) : all.sum(bank, all.shard(step.shard));
  }
  return banks;
}

int play_sum(Expressions& all, const Reduction& sum, std::vector<int> values) {
  for (const Addition& addition : sum.additions)
    values.push_back(all.sum(values.at(addition.left), values.at(addition.right)));
  return values.back();
}

TEST(Accumulation, YieldsTheOneExpressionForEveryNumberOfWorkersAndFewBanks) {
  for_every_world([](int shards, int workers) {
    Expressions all;
    const ShardedReduction plan = plan_sharded_reduction(shards, workers);
    EXPECT_LE(plan.banks, most_banks(shards));
    std::vector<int> operands;
    for (const Accumulation& worker : plan.workers) {
      const auto banks = play_banks(all, worker);
      for (const auto& [range, bank] : worker.held) {
        operands.push_back(banks.at(bank));
        EXPECT_EQ(banks.at(bank), by_definition(all, range.begin, range.end));
      }
    }
    EXPECT_EQ(play_sum(all, plan.sum, operands), by_definition(all, 0, shards))
        << shards << " shards on " << workers;
  });
}

TEST(Accumulation, WhatAWorkerHoldsMakesItsPartials) {
  for_every_world([](int shards, int workers) {
    Expressions all;
    for (int worker = 0; worker < workers; ++worker) {
      const ShardRange hosted = hosted_shards(worker, workers, shards);
      const Accumulation plan = plan_accumulation(hosted, shards, most_banks(shards));
      const auto banks = play_banks(all, plan);
      const auto partials = held_partials(hosted, shards);
      const auto sums = plan_partials(plan, hosted, shards);
      ASSERT_EQ(sums.size(), partials.size());
      std::size_t next = 0;
      for (std::size_t i = 0; i < sums.size(); ++i) {
        std::vector<int> operands;
        for (std::size_t k = 0; k < sums[i].operands.size(); ++k)
          operands.push_back(banks.at(plan.held.at(next++).bank));
        EXPECT_EQ(play_sum(all, sums[i], operands),
                  by_definition(all, partials[i].begin, partials[i].end));
      }
      EXPECT_EQ(next, plan.held.size());
    }
  });
}

TEST(Accumulation, OneShardPerWorkerNeedsOneBankAndNothingElse) {
  const ShardedReduction plan = plan_sharded_reduction(5, 5);
  EXPECT_EQ(plan.banks, 1);
  EXPECT_EQ(plan_sharded_reduction(8, 4).banks, 1)
      << "the second shard goes straight into the first's";
  EXPECT_EQ(plan_sharded_reduction(8, 1).banks, 4);
}

TEST(TreeSum, AddsNumbersInTheOrderOfTheTree) {
  const std::vector<double> values{1e16, 1, -1e16, 1, 3};
  EXPECT_EQ(tree_sum(values), ((1e16 + 1.0) + (-1e16 + 1.0)) + 3.0);
  EXPECT_EQ(tree_sum({}), 0);
}

}  // namespace
}  // namespace lockstep::plan
