#include "torch/optim/gradient_source.h"

#include "plan/slices.h"
#include "torch/replica/replicated.h"

namespace lockstep::optim {

bool GradientSource::is(const replica::FlatMemory& memory) const {
  return operands.size() == 1 && operands[0] == memory.data() && factor == 1;
}

GradientSource GradientSource::own(const replica::Replicated& model) {
  return {plan::plan_reduction(1, 1), &model.layout(), {model.gradients().data()}, 1, {}, {}};
}

GradientSource GradientSource::everyones(const replica::Replicated& model,
                                         const plan::ShardedReduction& plan, double divided_by) {
  GradientSource source{plan.sum, &model.banks().layout(), {}, 1 / divided_by, {}, {}};
  for (std::size_t worker = 0; worker < plan.workers.size(); ++worker) {
    for (const auto& held : plan.workers[worker].held)
      source.add(model, held.bank, static_cast<int>(worker));
  }
  return source;
}

void GradientSource::add(const replica::Replicated& model, int bank, int worker) {
  operands.push_back(model.banks().at(bank).memory().of(worker));
  if (!model.banks().watched()) return;
  parities.push_back(model.banks().at(bank).parities_of(worker));
  workers.push_back(worker);
}

GradientReader::GradientReader(const GradientSource& source, std::size_t entry, DType dtype)
    : source_(source),
      dtype_(dtype),
      sum_dtype_(source.layout->entries()[entry].dtype),
      in_place_(source.operands.size() == 1 && source.factor == 1),
      sum_(source.plan, {sum_dtype_, ReduceOp::kSum, source.factor}),
      at_(source.operands.size()) {
  if (!in_place_) scratch_.resize(plan::kPieceElements * size_of(sum_dtype_) / sizeof(double));
  if (sum_dtype_ != dtype_) rounded_.resize(plan::kPieceElements);
}

const void* GradientReader::read(std::size_t number, const plan::Stretch& piece) {
  const void* const values = sum(number, piece);
  if (sum_dtype_ == dtype_) return values;
  comm::narrow(dtype_, static_cast<const float*>(values), rounded_.data(), piece.count);
  return rounded_.data();
}

const void* GradientReader::sum(std::size_t number, const plan::Stretch& piece) {
  const std::size_t offset =
      source_.layout->entries()[piece.entry].offset + piece.first * size_of(sum_dtype_);
  for (std::size_t i = 0; i < at_.size(); ++i) at_[i] = source_.operands[i] + offset;
  changed_.reset();
  const bool watched = !source_.parities.empty();
  if (in_place_) {
    if (watched) compare(number, comm::parity(sum_dtype_, at_[0], piece.count), piece.count);
    return at_[0];
  }
  void* const sum = static_cast<void*>(scratch_.data());
  if (watched) {
    compare(number, sum_.run_watched(at_, sum, piece.count), piece.count);
  } else {
    sum_.run(at_, sum, piece.count);
  }
  return sum;
}

// All at once; one by one only to find out whose it is.
void GradientReader::compare(std::size_t number, comm::Parity seen, std::size_t count) {
  for (const comm::Parity* const written : source_.parities) seen ^= written[number];
  if (seen == 0) return;
  changed_ = source_.workers.front();
  for (std::size_t i = 0; i < at_.size(); ++i) {
    if (comm::parity(sum_dtype_, at_[i], count) != source_.parities[i][number])
      changed_ = source_.workers[i];
  }
}

}  // namespace lockstep::optim
