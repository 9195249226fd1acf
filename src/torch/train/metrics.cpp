#include "torch/train/metrics.h"

#include <algorithm>
#include <cmath>

namespace lockstep::train {

void StepMetrics::start(const Local& local) {
  sums_ = {local.weighted_loss, local.weight, local.stop ? 1.0 : 0.0};
  work_ = channel_.all_reduce({sums_.data(), sums_.size(), DType::kFloat64});
  pending_ = true;
}

StepMetrics::Global StepMetrics::finish() {
  work_.wait();
  pending_ = false;
  return {sums_[0] / sums_[1], sums_[2] > 0};
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
