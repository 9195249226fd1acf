#include "torch/optim/gradient_source.h"

#include "plan/slices.h"
#include "torch/replica/replicated.h"

namespace lockstep::optim {

GradientSource GradientSource::own(const replica::Replicated& model) {
  return {plan::plan_reduction(1, 1), {model.gradients().data()}, 1, {}, {}};
}

GradientSource GradientSource::everyones(const replica::Replicated& model,
                                         const plan::ShardedReduction& plan, double divided_by) {
  GradientSource source{plan.sum, {}, 1 / divided_by, {}, {}};
  for (std::size_t worker = 0; worker < plan.workers.size(); ++worker) {
    for (const auto& held : plan.workers[worker].held)
      source.add(model, held.bank, static_cast<int>(worker));
  }
  return source;
}

void GradientSource::add(const replica::Replicated& model, int bank, int worker) {
  operands.push_back(model.bank(bank).of(worker));
  if (!model.watches_gradients()) return;
  parities.push_back(model.parities(bank, worker));
  workers.push_back(worker);
}

GradientReader::GradientReader(const GradientSource& source, DType dtype)
    : source_(source),
      dtype_(dtype),
      in_place_(source.operands.size() == 1 && source.factor == 1),
      sum_(source.plan, {dtype, ReduceOp::kSum, source.factor}),
      at_(source.operands.size()) {
  if (!in_place_) scratch_.resize(plan::kPieceElements * size_of(dtype) / sizeof(double));
}

const void* GradientReader::read(std::size_t piece, std::size_t offset, std::size_t count) {
  for (std::size_t i = 0; i < at_.size(); ++i) at_[i] = source_.operands[i] + offset;
  changed_.reset();
  const bool watched = !source_.parities.empty();
  if (in_place_) {
    if (watched) compare(piece, comm::parity(dtype_, at_[0], count), count);
    return at_[0];
  }
  void* const sum = static_cast<void*>(scratch_.data());
  if (watched) {
    compare(piece, sum_.run_watched(at_, sum, count), count);
  } else {
    sum_.run(at_, sum, count);
  }
  return sum;
}

// All at once; one by one only to find out whose it is.
void GradientReader::compare(std::size_t piece, comm::Parity seen, std::size_t count) {
  for (const comm::Parity* const written : source_.parities) seen ^= written[piece];
  if (seen == 0) return;
  changed_ = source_.workers.front();
  for (std::size_t i = 0; i < at_.size(); ++i) {
    if (comm::parity(dtype_, at_[i], count) != source_.parities[i][piece])
      changed_ = source_.workers[i];
  }
}

}  // namespace lockstep::optim
