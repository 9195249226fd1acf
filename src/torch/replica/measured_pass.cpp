#include "torch/replica/measured_pass.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "flat/fold.h"
#include "plan/tree.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {

MeasuredPass::MeasuredPass(const Parts& parts, Attachment& attachment, PassListener& next)
    : parts_(parts), attachment_(attachment), next_(next) {
  attachment_.tell(*this);
}

MeasuredPass::~MeasuredPass() {
  attachment_.tell(next_);
}

void MeasuredPass::start() {
  forget();
  unheard_.clear();
}

void MeasuredPass::before(std::size_t entry) {
  unheard_.push_back(entry);
  next_.before(entry);
}

void MeasuredPass::ready(std::size_t entry, const torch::Tensor& incoming) {
  std::erase(unheard_, entry);
  measure_any(entry, incoming);
  next_.ready(entry, incoming);
}

// The gradients of a shard's pass begin undefined, so param.grad of a moved parameter is this shard's alone.
void MeasuredPass::end() {
  for (const std::size_t entry : unheard_) measure_any(entry, parts_.parameter(entry).grad());
  next_.end();
}

void MeasuredPass::measure_any(std::size_t entry, torch::Tensor gradient) {
  if (!gradient.defined()) return;
  const torch::NoGradGuard no_grad;
  const torch::Tensor& parameter = parts_.parameter(entry);
  if (gradient.layout() != torch::kStrided) gradient = gradient.to_dense();
  if (!in_the_same_order(gradient, parameter))
    gradient = torch::empty_like(parameter).copy_(gradient);
  measure(entry, gradient);
}

namespace {

class HostMeasuredPass : public MeasuredPass {
 public:
  HostMeasuredPass(const Parts& parts, Attachment& attachment, PassListener& next)
      : MeasuredPass(parts, attachment, next), blocks_(parts.plan.layout.blocks(), 0) {}

  double squares() const override { return plan::tree_sum(blocks_); }

 private:
  void forget() override { std::fill(blocks_.begin(), blocks_.end(), 0); }
  void measure(std::size_t entry, const torch::Tensor& gradient) override;

  std::vector<double> blocks_;  // of the layout: sums of squares
};

// In the order in which the layout has the elements.
void HostMeasuredPass::measure(std::size_t entry, const torch::Tensor& gradient) {
  const plan::Entry& of = parts_.plan.layout.entries()[entry];
  const DType dtype = reducible_dtype(gradient, of.name);
  const auto* const first = static_cast<const std::byte*>(gradient.data_ptr());
  double* const numbers = blocks_.data() + of.first_block;
  constexpr auto kBlock = static_cast<std::int64_t>(plan::kBlockElements);
  at::parallel_for(0, static_cast<std::int64_t>(of.blocks()), at::internal::GRAIN_SIZE / kBlock,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (auto block = static_cast<std::size_t>(begin);
                          block < static_cast<std::size_t>(end); ++block) {
                       const std::size_t at = block * plan::kBlockElements;
                       numbers[block] =
                           flat::sum_of_squares(dtype, first + at * size_of(dtype),
                                                std::min(plan::kBlockElements, of.count - at));
                     }
                   });
}

}  // namespace

std::unique_ptr<MeasuredPass> make_host_measured_pass(const Parts& parts, Attachment& attachment,
                                                      PassListener& next) {
  return std::make_unique<HostMeasuredPass>(parts, attachment, next);
}

}  // namespace lockstep::replica
