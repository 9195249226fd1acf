#include "torch/replica/flat_gradients.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstring>

namespace lockstep::replica {
namespace {

c10::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return torch::kFloat64;
    case DType::kFloat16:
      return torch::kFloat16;
    case DType::kBFloat16:
      return torch::kBFloat16;
    default:
      return torch::kFloat32;
  }
}

// One from_blob per gradient and not slices of one tensor: a slice is a view to autograd, and
// a stock optimizer's zero_grad() cannot detach views.
torch::Tensor view_of(const std::shared_ptr<Arena>& arena, const plan::Entry& entry,
                      const torch::Tensor& parameter) {
  const auto options = torch::TensorOptions().dtype(parameter.dtype());
  const auto keep = [arena](void*) {};
  void* place = arena->data() + entry.offset;
  if (parameter.is_non_overlapping_and_dense())
    return torch::from_blob(place, parameter.sizes(), parameter.strides(), keep, options);
  return torch::from_blob(place, parameter.sizes(), keep, options);
}

}  // namespace

FlatGradients::FlatGradients(const std::vector<NamedTensor>& parameters, const plan::Layout& layout)
    : arena_(std::make_shared<Arena>(Arena::create(std::max<std::size_t>(layout.bytes(), 1)))),
      bytes_(layout.bytes()) {
  places_.reserve(layout.entries().size());
  for (const plan::Entry& entry : layout.entries()) {
    torch::Tensor parameter = parameters[entry.registered].tensor;
    torch::Tensor view = view_of(arena_, entry, parameter);
    if (parameter.grad().defined()) view.copy_(parameter.grad().detach());
    parameter.mutable_grad() = view;
    places_.push_back({entry.name, parameter, view});
  }
}

void FlatGradients::clear() {
  std::memset(arena_->data(), 0, bytes_);
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
  return {arena_->data() + bucket.offset, bucket.count(), bucket.dtype};
}

void FlatGradients::scale(const plan::Bucket& bucket, double factor) const {
  if (factor == 1) return;
  torch::NoGradGuard no_grad;
  torch::from_blob(arena_->data() + bucket.offset, {static_cast<std::int64_t>(bucket.count())},
                   torch::TensorOptions().dtype(scalar_type(bucket.dtype)))
      .mul_(factor);
}

}  // namespace lockstep::replica
