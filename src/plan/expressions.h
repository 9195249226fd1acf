// For tests: expressions as numbers. The same expression always gets the same number, so that comparing two
// sums operand by operand is comparing two numbers.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "plan/tree.h"

namespace lockstep::plan {

class Expressions {
 public:
  int shard(int s) { return intern({-1, s}); }
  int sum(int left, int right) { return intern({left, right}); }

  // The last of a plan's additions, where `values` are its operands.
  int add_up(const Reduction& plan, std::vector<int> values) {
    for (const Addition& addition : plan.additions)
      values.push_back(sum(values.at(addition.left), values.at(addition.right)));
    return values.back();
  }

 private:
  int intern(std::pair<int, int> key) {
    return known_.emplace(key, static_cast<int>(known_.size())).first->second;
  }
  std::map<std::pair<int, int>, int> known_;
};

// The tree's definition, written again: split at the largest power of two below the size.
inline int by_definition(Expressions& all, int begin, int end) {
  if (end - begin == 1) return all.shard(begin);
  int half = 1;
  while (half * 2 < end - begin) half *= 2;
  const int left = by_definition(all, begin, begin + half);
  const int right = by_definition(all, begin + half, end);
  return all.sum(left, right);
}

}  // namespace lockstep::plan
