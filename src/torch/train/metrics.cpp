#include "torch/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "plan/tree.h"

namespace lockstep::train {

// Every number is one worker's, and zero elsewhere: the sum moves them and adds nothing up.
void StepMetrics::start(const Local& local, int shards, double total) {
  losses_.assign(static_cast<std::size_t>(shards) + 1, 0);
  for (const auto& [shard, loss] : local.weighted_losses)
    losses_[static_cast<std::size_t>(shard)] = loss;
  losses_.back() = local.stop ? 1 : 0;
  total_ = total;
  work_ = channel_.all_reduce({losses_.data(), losses_.size(), DType::kFloat64});
  pending_ = true;
}

StepMetrics::Global StepMetrics::finish() {
  work_.wait();
  pending_ = false;
  const std::span<const double> losses(losses_.data(), losses_.size() - 1);
  return {plan::tree_sum(losses) / total_, losses_.back() > 0};
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
