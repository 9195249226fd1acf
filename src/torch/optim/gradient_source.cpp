#include "torch/optim/gradient_source.h"

#include "torch/replica/replicated.h"

namespace lockstep::optim {

GradientSource GradientSource::own(const replica::Replicated& model) {
  return {plan::plan_reduction(1, 1), {model.gradients().data()}, 1};
}

GradientSource GradientSource::everyones(const replica::Replicated& model,
                                         const plan::ShardedReduction& plan, double divided_by) {
  GradientSource source{plan.sum, {}, 1 / divided_by};
  for (std::size_t worker = 0; worker < plan.workers.size(); ++worker) {
    for (const auto& held : plan.workers[worker].held)
      source.operands.push_back(model.bank(held.bank).of(static_cast<int>(worker)));
  }
  return source;
}

GradientReader::GradientReader(const GradientSource& source, DType dtype)
    : source_(source),
      in_place_(source.operands.size() == 1 && source.factor == 1),
      sum_(source.plan, {dtype, ReduceOp::kSum, source.factor}),
      at_(source.operands.size()) {
  if (!in_place_) scratch_.resize(kUpdateElements * size_of(dtype) / sizeof(double));
}

const void* GradientReader::read(std::size_t offset, std::size_t count) {
  for (std::size_t i = 0; i < at_.size(); ++i) at_[i] = source_.operands[i] + offset;
  if (in_place_) return at_[0];
  sum_.run(at_, static_cast<void*>(scratch_.data()), count);
  return scratch_.data();
}

}  // namespace lockstep::optim
