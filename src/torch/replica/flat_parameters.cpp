#include "torch/replica/flat_parameters.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

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
  const bool writes = copies_ == Copies::kPerWorker || !memory_.shared() || comm.rank() == 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& parameter = parameters_[i].tensor;
    torch::Tensor view = memory_.view(layout_.entries()[i], parameter);
    if (writes) view.copy_(parameter.detach());
    parameter.set_data(view);
  }
  comm.barrier().wait();  // nobody reads before the first worker has written
}

void FlatParameters::check(std::size_t entry) const {
  const auto& [name, parameter] = parameters_[entry];
  const plan::Entry& place = layout_.entries()[entry];
  if (place.count == 0 || parameter.data_ptr() == memory_.data() + place.offset) return;
  throw BadInput(
      fmt::format("the values of {} are no longer where Lockstep updates them: move or convert the "
                  "module before "
                  "data_parallel(), not after, and write to parameters in place",
                  name));
}

}  // namespace lockstep::replica
