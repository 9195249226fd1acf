#include "torch/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "plan/tree.h"

namespace lockstep::train {

// Every number is one worker's, and zero elsewhere: the sum moves them and adds nothing up.
void StepMetrics::start(const Local& local, int shards, double total) {
  shards_ = static_cast<std::size_t>(shards);
  numbers_.assign(shards_ + static_cast<std::size_t>(channel_.size()) + 1, 0);
  for (const auto& [shard, loss] : local.weighted_losses)
    numbers_[static_cast<std::size_t>(shard)] = loss;
  numbers_[shards_ + static_cast<std::size_t>(channel_.rank())] = local.mark;
  numbers_.back() = local.stop ? 1 : 0;
  total_ = total;
  work_ = channel_.all_reduce({numbers_.data(), numbers_.size(), DType::kFloat64});
  pending_ = true;
}

StepMetrics::Global StepMetrics::finish() {
  work_.wait();
  pending_ = false;
  const std::span<const double> numbers(numbers_);
  const auto marks = numbers.subspan(shards_, numbers.size() - shards_ - 1);
  return {plan::tree_sum(numbers.first(shards_)) / total_,
          {marks.begin(), marks.end()},
          numbers.back() > 0};
}

double percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(part * static_cast<double>(values.size())));
  const auto place =
      values.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

}  // namespace lockstep::train
