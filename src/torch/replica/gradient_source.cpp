#include "torch/replica/gradient_source.h"

namespace lockstep::replica {

bool GradientSource::is(const FlatMemory& memory) const {
  return operands.size() == 1 && operands[0] == memory.data() && factor == 1;
}

GradientSource GradientSource::of(const FlatMemory& memory, const plan::Layout& layout) {
  return {plan::plan_of_one_each(1), &layout, {memory.data()}, 1, {}, {}, {}};
}

GradientSource GradientSource::fronts(const Banks& banks, int workers, double factor) {
  const FlatGradients& front = banks.front();
  GradientSource source{
      plan::plan_of_one_each(workers), &banks.front_layout(), {}, factor, {}, {}, {}};
  for (int worker = 0; worker < workers; ++worker)
    source.operands.push_back(front.memory().of(worker));
  return source;
}

GradientSource GradientSource::everyones(const Banks& banks, const plan::ShardedReduction& plan,
                                         double factor) {
  GradientSource source{plan.sum, &banks.layout(), {}, factor, {}, {}, {}};
  for (std::size_t worker = 0; worker < plan.workers.size(); ++worker) {
    const int rank = static_cast<int>(worker);
    for (const auto& held : plan.workers[worker].held) {
      const FlatGradients& bank = banks.at(held.bank);
      source.operands.push_back(bank.memory().of(rank));
      if (!bank.watched()) continue;
      source.parities.push_back(bank.parities_of(rank));
      source.workers.push_back(rank);
    }
  }
  return source;
}

GradientReader::GradientReader(const GradientSource& source, std::size_t entry, DType dtype)
    : source_(source),
      dtype_(dtype),
      sum_dtype_(source.layout->entries()[entry].dtype),
      in_place_(source.operands.size() == 1 && source.factor == 1 && source.limit == 0),
      sum_(source.plan, {sum_dtype_, ReduceOp::kSum, source.factor}),
      at_(source.operands.size()) {
  if (!in_place_) scratch_.resize(plan::kPieceElements * size_of(sum_dtype_) / sizeof(double));
  if (sum_dtype_ != dtype_) rounded_.resize(plan::kPieceElements);
}

void GradientReader::find(const plan::Stretch& piece) {
  const std::size_t offset =
      source_.layout->entries()[piece.entry].offset + piece.first * size_of(sum_dtype_);
  for (std::size_t i = 0; i < at_.size(); ++i) at_[i] = source_.operands[i] + offset;
}

// The sum, in scratch memory.
const void* GradientReader::limited(std::size_t count) {
  if (source_.limit > 0)
    flat::limit(sum_dtype_, source_.limit, scratch_.data(), scratch_.data(), count);
  return scratch_.data();
}

const void* GradientReader::rounded(const void* values, const plan::Stretch& piece) {
  if (sum_dtype_ == dtype_) return values;
  flat::narrow(dtype_, static_cast<const float*>(values), rounded_.data(), piece.count);
  return rounded_.data();
}

const void* GradientReader::read(const plan::Stretch& piece) {
  find(piece);
  if (in_place_) return rounded(at_[0], piece);
  sum_.run(at_, scratch_.data(), piece.count);
  return rounded(limited(piece.count), piece);
}

const void* GradientReader::read_with_parity(std::size_t number, const plan::Stretch& piece) {
  changed_.reset();
  if (source_.parities.empty()) return read(piece);
  find(piece);
  const flat::Parity seen = in_place_ ? flat::parity(sum_dtype_, at_[0], piece.count)
                                      : sum_.run_with_parity(at_, scratch_.data(), piece.count);
  compare(number, seen, piece.count);
  return rounded(in_place_ ? at_[0] : limited(piece.count), piece);
}

// `seen` is the XOR over all operands. Only if that differs, each is read again to find out whose
// it is.
void GradientReader::compare(std::size_t number, flat::Parity seen, std::size_t count) {
  for (const flat::Parity* const written : source_.parities) seen ^= written[number];
  if (seen == 0) return;
  changed_ = source_.workers.front();
  for (std::size_t i = 0; i < at_.size(); ++i) {
    if (flat::parity(sum_dtype_, at_[i], count) != source_.parities[i][number])
      changed_ = source_.workers[i];
  }
}

}  // namespace lockstep::replica
