#include "torch/train/results.h"

#include <algorithm>
#include <cmath>

#include "base/memory_use.h"

namespace lockstep::train {

void RunTimes::fill(TrainingResult& result) const {
  for (const double ms : step_ms) result.seconds += ms / 1000;
  if (result.seconds > 0) result.samples_per_second = static_cast<double>(samples) / result.seconds;
  result.step_ms_p50 = percentile(step_ms, 0.5);
  result.step_ms_p95 = percentile(step_ms, 0.95);
  result.exposed_comm_ms_p50 = percentile(exposed_ms, 0.5);
}

std::size_t memory_of_all(Comm& comm) {
  auto memory = static_cast<std::int64_t>(base::proportional_set_bytes());
  comm.all_reduce({&memory, 1, DType::kInt64}).wait();
  return static_cast<std::size_t>(memory);
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
