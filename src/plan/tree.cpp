#include "plan/tree.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace lockstep::plan {
namespace {

bool contains(ShardRange outer, ShardRange inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

bool disjoint(ShardRange a, ShardRange b) {
  return a.end <= b.begin || b.end <= a.begin;
}

int middle_of(ShardRange node) {
  return node.begin + split_size(node.size());
}

bool is_power_of_two(int value) {
  return std::has_single_bit(static_cast<unsigned>(value));
}

void check_world(int shards, int workers) {
  if (workers < 1) {
    throw BadInput(fmt::format("{} workers cannot train: ask for at least 1", workers));
  }
  if (shards < workers) {
    throw BadInput(
        fmt::format("{} shards leave some of {} workers idle: use at most {} workers, or "
                    "start the job with more shards",
                    shards, workers, std::max(shards, 1)));
  }
}

// Nodes are nested or disjoint, so the largest ones inside a range are the fewest that cover it.
void collect_largest_inside(ShardRange node, ShardRange range, std::vector<ShardRange>& found) {
  if (disjoint(node, range)) return;
  if (contains(range, node)) {
    found.push_back(node);
    return;
  }
  const int middle = middle_of(node);
  collect_largest_inside({node.begin, middle}, range, found);
  collect_largest_inside({middle, node.end}, range, found);
}

// Walks the tree from left to right. It meets the operands in their order, and writes one addition
// for every node above them.
class AdditionWriter {
 public:
  explicit AdditionWriter(Reduction& plan) : plan_(plan) {}

  // Returns the number of the operand or addition that is the sum of `node`.
  int write(ShardRange node) {
    if (plan_.operands[next_].range == node) return static_cast<int>(next_++);
    const int middle = middle_of(node);
    const int left = write({node.begin, middle});
    const int right = write({middle, node.end});
    plan_.additions.push_back({left, right});
    return static_cast<int>(plan_.operands.size() + plan_.additions.size()) - 1;
  }

 private:
  Reduction& plan_;
  std::size_t next_ = 0;
};

}  // namespace

int split_size(int size) {
  LOCKSTEP_CHECK(size >= 2, "only a range of two shards or more splits");
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(size)) / 2);
}

double tree_sum(std::span<const double> values) {
  if (values.empty()) return 0;
  if (values.size() == 1) return values[0];
  const std::size_t left = std::bit_floor(values.size() - 1);
  return tree_sum(values.first(left)) + tree_sum(values.subspan(left));
}

ShardRange hosted_shards(int worker, int workers, int shards) {
  check_world(shards, workers);
  LOCKSTEP_CHECK(worker >= 0 && worker < workers, "a worker's rank is below the number of workers");
  const int each = shards / workers;
  const int longer = shards % workers;
  const int begin = worker * each + std::min(worker, longer);
  return {begin, begin + each + (worker < longer ? 1 : 0)};
}

std::vector<ShardRange> held_partials(ShardRange hosted, int shards) {
  LOCKSTEP_CHECK(hosted.begin >= 0 && hosted.begin <= hosted.end && hosted.end <= shards,
                 "a range of shards lies inside the job's");
  std::vector<ShardRange> found;
  if (hosted.size() > 0) collect_largest_inside({0, shards}, hosted, found);
  return found;
}

int Reduction::first_of(int worker) const {
  const auto first = std::partition_point(operands.begin(), operands.end(),
                                          [&](const Operand& o) { return o.worker < worker; });
  return static_cast<int>(first - operands.begin());
}

int Reduction::count_of(int worker) const {
  return first_of(worker + 1) - first_of(worker);
}

Reduction plan_reduction(int shards, int workers) {
  check_world(shards, workers);
  std::vector<Operand> operands;
  for (int worker = 0; worker < workers; ++worker) {
    for (const ShardRange& range : held_partials(hosted_shards(worker, workers, shards), shards)) {
      operands.push_back({worker, range});
    }
  }
  Reduction plan = plan_additions({0, shards}, std::move(operands));
  plan.workers = workers;
  return plan;
}

const Reduction& plan_of_one_each(int workers) {
  thread_local Reduction last;
  if (last.workers != workers) last = plan_reduction(workers, workers);
  return last;
}

Reduction plan_additions(ShardRange node, std::vector<Operand> operands) {
  Reduction plan{
      .shards = node.size(), .workers = 1, .operands = std::move(operands), .additions = {}};
  AdditionWriter(plan).write(node);
  return plan;
}

Verdict halving_doubling_verdict(int shards, int workers) {
  check_world(shards, workers);
  if (!is_power_of_two(workers)) {
    return {false, fmt::format("{} workers are no power of two", workers)};
  }
  if (workers == 1) return {true, ""};
  if (shards % workers != 0) {
    return {false, fmt::format("{} shards do not divide evenly among {} workers", shards, workers)};
  }
  if (!is_power_of_two(shards / workers)) {
    return {false, fmt::format("{} shards per worker are no power of two", shards / workers)};
  }
  return {true, ""};
}

std::vector<HalvingStep> halving_steps(int rank, int workers) {
  LOCKSTEP_CHECK(workers >= 1 && is_power_of_two(workers),
                 "halving-doubling runs only where its verdict allows it");
  LOCKSTEP_CHECK(rank >= 0 && rank < workers, "a rank is below the number of workers");
  std::vector<HalvingStep> steps;
  for (int distance = 1; distance < workers; distance *= 2) {
    const bool upper = (rank & distance) != 0;
    steps.push_back({.partner = rank ^ distance, .partner_is_left = upper, .keep_low = !upper});
  }
  return steps;
}

}  // namespace lockstep::plan
