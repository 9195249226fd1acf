#include "torch/replica/banks.h"

#include <algorithm>
#include <utility>

namespace lockstep::replica {

Banks::Banks(const Model& model, const ModelPlan& plan, FlatMemory front, Factory factory)
    : trained_(model.trained), plan_(plan), factory_(std::move(factory)) {
  all_.push_back(factory_(plan_.layout, std::move(front)));
}

void Banks::make(Comm& comm, int count, Holds holds) {
  auto wide = holds == Holds::kSums ? layout_of_sums(plan_.layout) : std::nullopt;
  if (wide.has_value() != wide_.has_value()) {
    use_gradients();
    all_.erase(all_.begin() + 1, all_.end());
    wide_ = std::move(wide);
  }
  while (all_.size() < index_of(count)) {
    FlatMemory bank = next_memory(comm);
    bank.leave_behind(comm, FlatMemory::Use::kGradients);
    all_.push_back(factory_(layout(), std::move(bank)));
  }
  spare_.clear();
}

void Banks::take_spare(const Banks& before) {
  for (std::size_t i = 1; i < before.all_.size(); ++i) spare_.push_back(before.all_[i]->memory());
}

FlatMemory Banks::next_memory(Comm& comm) {
  const std::size_t bytes = layout().bytes();
  const auto fits = std::find_if(spare_.begin(), spare_.end(), [bytes](const FlatMemory& memory) {
    return memory.bytes() == bytes;
  });
  if (fits == spare_.end()) return {comm, bytes, Copies::kReduced, front().memory().device()};
  FlatMemory memory = FlatMemory::again(comm, *fits);
  spare_.erase(fits);
  return memory;
}

// Gradients are hidden, so that adopt() adds what backward makes. Autograd itself would add sparse
// gradients in another order.
void Banks::use(int bank) {
  in_use().settle();
  in_use_ = index_of(bank);
  in_use().hide();
}

void Banks::begin(int bank) {
  if (in_use_ != index_of(bank)) use(bank);
  in_use().clear();
}

void Banks::add(int into, int from) {
  in_use().settle();  // the bank in use may be one of the two
  at(into).add(at(from), plan_.buckets);
}

void Banks::use_gradients() {
  if (in_use_ == 0) return front().stay(absent_);
  in_use().settle();
  in_use_ = 0;
  front().attach();
}

void Banks::use_averages() {
  use_gradients();
  if (wide_) front().take(at(0));
}

void Banks::show_averages() {
  in_use_ = 0;
  front().attach_averages();
}

void Banks::stay() {
  in_use().stay(absent_);
  hide_absent();
}

void Banks::share_averages(Comm& comm) {
  if (std::exchange(shares_averages_, true)) return;
  front().keep_averages(HostCopy::make({comm, comm}, plan_.layout.bytes()));
}

void Banks::watch(Comm& comm, divergence::FirstFault& faults) {
  for (std::size_t i = index_of(0); i < all_.size(); ++i) {
    if (all_[i]->watched()) continue;
    FlatMemory parities(comm, plan_.pieces.all.size() * sizeof(flat::Parity), Copies::kPerWorker);
    all_[i]->watch(std::move(parities), plan_.pieces, faults, comm.rank());
  }
}

void Banks::release() {
  for (const auto& bank : all_) bank->unwatch();
  in_use_ = 0;
  front().clear();
}

std::vector<std::uint8_t> Banks::present(const std::vector<bool>& reached) const {
  std::vector<std::uint8_t> has(reached.begin(), reached.end());
  for (std::size_t entry = 0; entry < has.size(); ++entry) {
    if (parameter(entry).grad().defined()) has[entry] = 1;
  }
  return has;
}

void Banks::find_absent(Comm& comm, std::vector<std::uint8_t> has) {
  comm.all_reduce({has.data(), has.size(), DType::kUInt8}, {.op = ReduceOp::kMax}).wait();
  absent_.assign(has.size(), false);
  for (std::size_t i = 0; i < has.size(); ++i) absent_[i] = has[i] == 0;
}

void Banks::hide_absent() {
  for (std::size_t entry = 0; entry < absent_.size(); ++entry) {
    if (absent_[entry]) parameter(entry).mutable_grad() = torch::Tensor();
  }
}

}  // namespace lockstep::replica
