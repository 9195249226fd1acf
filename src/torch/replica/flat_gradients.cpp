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

void FlatGradients::clear() {
  for (Place& place : places_) place.parameter.mutable_grad() = torch::Tensor();
}

void FlatGradients::adopt(std::size_t entry) {
  check(entry);
  Place& place = places_.at(entry);
  const torch::Tensor& grad = place.parameter.grad();
  if (!grad.defined() || grad.data_ptr() == place.view.data_ptr()) return;
  torch::NoGradGuard no_grad;
  if (grad.layout() == torch::kStrided) {
    at::add_out(place.view, grad, torch::scalar_tensor(0, grad.options()));
  } else {
    place.view.zero_().add_(grad);
  }
  place.parameter.mutable_grad() = place.view;
}

void FlatGradients::settle() {
  torch::NoGradGuard no_grad;
  for (std::size_t entry = 0; entry < places_.size(); ++entry) {
    adopt(entry);
    Place& place = places_[entry];
    if (place.parameter.grad().defined()) continue;
    place.view.zero_();
    place.parameter.mutable_grad() = place.view;
  }
}

void FlatGradients::check(std::size_t entry) const {
  const Place& place = places_.at(entry);
  const torch::Tensor& grad = place.parameter.grad();
  const bool converted = place.parameter.scalar_type() != place.view.scalar_type() ||
                         place.parameter.device() != place.view.device();
  if (!converted && !(grad.defined() && grad.requires_grad())) return;
  throw BadInput(fmt::format(
      "the gradient of {} {}", place.name,
      converted ? "is of another type or device than its parameter now: move or convert the module "
                  "before data_parallel(), not after"
                : "is part of a graph: use no create_graph"));
}

Buffer FlatGradients::bucket(const plan::Bucket& bucket) const {
  return {memory_.data() + bucket.offset, bucket.count(), bucket.dtype};
}

}  // namespace lockstep::replica
