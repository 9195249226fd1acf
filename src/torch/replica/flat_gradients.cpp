#include "torch/replica/flat_gradients.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

namespace lockstep::replica {

FlatGradients::FlatGradients(const std::vector<NamedTensor>& parameters, const plan::Layout& layout,
                             FlatMemory memory)
    : memory_(std::move(memory)) {
  places_.reserve(layout.entries().size());
  for (const plan::Entry& entry : layout.entries()) {
    torch::Tensor parameter = parameters[entry.registered].tensor;
    places_.push_back({entry.name, parameter, memory_.view(entry, parameter)});
  }
}

void FlatGradients::attach() {
  for (Place& place : places_) place.parameter.mutable_grad() = place.view;
}

void FlatGradients::take_over() {
  for (Place& place : places_) {
    if (place.parameter.grad().defined()) place.view.copy_(place.parameter.grad().detach());
  }
  attach();
}

void FlatGradients::check(std::size_t entry) const {
  const Place& place = places_.at(entry);
  const torch::Tensor& grad = place.parameter.grad();
  const bool converted = place.parameter.scalar_type() != place.view.scalar_type() ||
                         place.parameter.device() != place.view.device();
  if (!converted && grad.defined() && grad.data_ptr() == place.view.data_ptr()) return;
  throw BadInput(fmt::format(
      "the gradient of {} is {}: {}", place.name,
      converted        ? "of another type or device than its parameter now"
      : grad.defined() ? "no longer where Lockstep averages it"
                       : "gone",
      "clear gradients with the model's own zero_grad(), not with set_to_none; move or convert the "
      "module before data_parallel(), not after; and use no create_graph"));
}

Buffer FlatGradients::bucket(const plan::Bucket& bucket) const {
  return {memory_.data() + bucket.offset, bucket.count(), bucket.dtype};
}

}  // namespace lockstep::replica
