#include "torch/replica/parameters.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include "torch/replica/tensors.h"
#include "torch/replica/weight_sample.h"

namespace lockstep::replica {

FlatParameters::FlatParameters(Comm& comm, const std::vector<NamedTensor>& parameters,
                               const plan::Layout& layout, Copies copies, Device device)
    : layout_(layout), copies_(copies), memory_(comm, layout.bytes(), copies, device) {
  for (const plan::Entry& entry : layout_.entries())
    parameters_.push_back(parameters[entry.registered]);
  move_in(comm);
}

void FlatParameters::keep_one_copy(Comm& comm) {
  if (copies_ == Copies::kPerHost || !memory_.shared() || comm.size() == 1) return;
  memory_ = FlatMemory(comm, layout_.bytes(), Copies::kPerHost);
  copies_ = Copies::kPerHost;
  move_in(comm);
}

void FlatParameters::move_in(Comm& comm) {
  torch::NoGradGuard no_grad;
  views_.resize(parameters_.size());
  const bool writes = copies_ == Copies::kPerWorker || !memory_.shared() || comm.rank() == 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& parameter = parameters_[i].tensor;
    torch::Tensor view = memory_.view(layout_.entries()[i], parameter);
    views_[i] = view;
    if (writes) view.copy_(parameter.detach());
    parameter.set_data(view);
  }
  comm.barrier().wait();  // nobody reads before the first worker has written
}

void FlatParameters::note_pass() {
  if (copies_ == Copies::kPerHost && memory_.shared())
    after_pass_ = sample_lines(memory_, layout_, 0);
}

bool FlatParameters::written_by_others() const {
  return after_pass_ && *after_pass_ != sample_lines(memory_, layout_, 0);
}

bool FlatParameters::holds(std::size_t entry) const {
  const plan::Entry& place = layout_.entries()[entry];
  return place.count == 0 || parameters_[entry].tensor.data_ptr() == memory_.data() + place.offset;
}

void FlatParameters::take_back(std::size_t entry) {
  auto& [name, parameter] = parameters_[entry];
  const torch::Tensor& was = views_[entry];
  if (parameter.scalar_type() != was.scalar_type() || parameter.device() != was.device() ||
      parameter.sizes() != was.sizes()) {
    throw BadInput(fmt::format(
        "{} is {} on {} now and was {} on {} when the model was replicated: move, convert or "
        "resize "
        "the module before data_parallel(), not after",
        name, describe(parameter), parameter.device().str(), describe(was), was.device().str()));
  }
  if (copies_ == Copies::kPerHost && memory_.shared()) {
    throw BadInput(fmt::format(
        "{} was given other memory, and the workers of this host share one copy of it: load with "
        "lockstep::load, which all workers call, or write to parameters in place, alike on all",
        name));
  }
  torch::NoGradGuard no_grad;
  torch::Tensor view = was;
  view.copy_(parameter.detach());
  parameter.set_data(view);
}

}  // namespace lockstep::replica
