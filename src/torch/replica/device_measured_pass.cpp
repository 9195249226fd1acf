#include <algorithm>

#include "plan/tree.h"
#include "torch/replica/measured_pass.h"

namespace lockstep::replica {
namespace {

// The sums stay on the GPU until somebody asks.
class DeviceMeasuredPass : public MeasuredPass {
 public:
  DeviceMeasuredPass(const Parts& parts, Attachment& attachment, PassListener& next)
      : MeasuredPass(parts, attachment, next), sums_(parts.plan.layout.entries().size()) {}

  double squares() const override;

 private:
  void forget() override { std::fill(sums_.begin(), sums_.end(), torch::Tensor()); }
  void measure(std::size_t entry, const torch::Tensor& gradient) override;

  std::vector<torch::Tensor> sums_;  // by entry; undefined: it has no gradient
};

// A part at a time: the sum is taken in float64, of a copy.
void DeviceMeasuredPass::measure(std::size_t entry, const torch::Tensor& gradient) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  const std::int64_t count = gradient.numel();
  const torch::Tensor flat = gradient.as_strided({count}, {1});
  for (std::int64_t first = 0; first < count; first += kMost) {
    const torch::Tensor part =
        flat.slice(0, first, std::min(first + kMost, count)).to(torch::kFloat64).square().sum();
    sums_[entry] = sums_[entry].defined() ? sums_[entry] + part : part;
  }
}

double DeviceMeasuredPass::squares() const {
  std::vector<torch::Tensor> there;
  for (const torch::Tensor& sum : sums_) {
    if (sum.defined()) there.push_back(sum);
  }
  if (there.empty()) return 0;
  const torch::Tensor here = torch::stack(there).cpu();
  const auto* const first = static_cast<const double*>(here.data_ptr());
  return plan::tree_sum(std::vector<double>(first, first + here.numel()));
}

}  // namespace

std::unique_ptr<MeasuredPass> make_device_measured_pass(const Parts& parts, Attachment& attachment,
                                                        PassListener& next) {
  return std::make_unique<DeviceMeasuredPass>(parts, attachment, next);
}

}  // namespace lockstep::replica
