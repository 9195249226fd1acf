#include "flat/tree_program.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::flat {

std::vector<std::uint8_t> tree_program(const plan::Reduction& plan) {
  if (plan.operands.size() > kMostOperands) {
    throw Unavailable(fmt::format(
        "{} partials are more than the {} that a GPU adds at once; use fewer workers or shards",
        plan.operands.size(), kMostOperands));
  }
  std::vector<std::uint8_t> adds(plan.operands.size(), 0);
  std::vector<int> waiting;
  std::size_t next = 0;
  std::size_t most = 0;
  for (std::size_t i = 0; i < adds.size(); ++i) {
    waiting.push_back(static_cast<int>(i));
    most = std::max(most, waiting.size());
    while (next < plan.additions.size() && waiting.size() >= 2 &&
           plan.additions[next] == plan::Addition{waiting[waiting.size() - 2], waiting.back()}) {
      waiting.pop_back();
      waiting.back() = static_cast<int>(adds.size() + next++);
      ++adds[i];
    }
  }
  LOCKSTEP_CHECK(next == plan.additions.size() && waiting.size() == 1,
                 "a plan adds from left to right and leaves one sum");
  LOCKSTEP_CHECK(most <= kMostWaiting, "a tree is no deeper than its operands allow");
  return adds;
}

}  // namespace lockstep::flat
