#include "torch/replica/flat_gradients.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <lockstep/errors.h>

namespace lockstep::replica {
namespace {

// Pieces below which a second thread costs more than it saves.
constexpr std::int64_t kGrain = 4;

bool in_the_same_order(const torch::Tensor& a, const torch::Tensor& b) {
  return a.layout() == torch::kStrided && a.scalar_type() == b.scalar_type() &&
         a.device() == b.device() && a.strides() == b.strides() && b.is_non_overlapping_and_dense();
}

}  // namespace

FlatGradients::FlatGradients(const std::vector<NamedTensor>& parameters, const plan::Layout& layout,
                             FlatMemory memory)
    : memory_(std::move(memory)) {
  places_.reserve(layout.entries().size());
  for (const plan::Entry& entry : layout.entries()) {
    torch::Tensor parameter = parameters[entry.registered].tensor;
    places_.push_back({entry, parameter, memory_.view(entry, parameter)});
  }
}

void FlatGradients::watch(FlatMemory parities, const plan::Pieces& pieces, FirstFault& faults,
                          int worker) {
  parities_.emplace(std::move(parities));
  pieces_ = &pieces;
  faults_ = &faults;
  worker_ = worker;
}

void FlatGradients::attach() {
  for (Place& place : places_) place.parameter.mutable_grad() = place.view;
}

void FlatGradients::clear() {
  for (Place& place : places_) {
    place.parameter.mutable_grad() = torch::Tensor();
    place.hidden = false;
  }
}

void FlatGradients::hide() {
  for (Place& place : places_) {
    place.parameter.mutable_grad() = torch::Tensor();
    place.hidden = true;
  }
}

void FlatGradients::adopt(std::size_t entry) {
  check(entry);
  Place& place = places_.at(entry);
  const torch::Tensor& grad = place.parameter.grad();
  if (!grad.defined()) return;
  torch::NoGradGuard no_grad;
  const bool is_in_place = grad.data_ptr() == place.view.data_ptr();
  if (watched() && !is_in_place && in_the_same_order(grad, place.view)) {
    move_in_watched(entry, grad);
  } else if (!is_in_place) {
    if (place.hidden) {
      place.view.add_(grad);
    } else if (grad.layout() == torch::kStrided) {
      at::add_out(place.view, grad, torch::scalar_tensor(0, grad.options()));
    } else {
      place.view.zero_().add_(grad);
    }
    look_at(entry);
  } else {
    look_at(entry);  // backward has added to it where it lies
  }
  place.parameter.mutable_grad() = place.view;
  place.hidden = false;
}

// 0 + g into its place, or added to what is hidden there; either way one pass.
void FlatGradients::move_in_watched(std::size_t entry, const torch::Tensor& grad) {
  const Place& place = places_[entry];
  const DType dtype = place.entry.dtype;
  const std::size_t size = size_of(dtype);
  const auto* const from = static_cast<const std::byte*>(grad.data_ptr());
  std::byte* const into = memory_.data() + place.entry.offset;
  for_each_piece(entry, [&](std::size_t piece, const plan::Stretch& where) {
    comm::Parity& kept = parities()[piece];
    const std::size_t at = where.first * size;
    if (!place.hidden) {
      kept = comm::copy_watched(dtype, from + at, into + at, where.count);
      return;
    }
    const comm::Parities seen = comm::add_watched(dtype, into + at, from + at, where.count);
    expect(piece, seen.before);
    kept = seen.after;
  });
}

void FlatGradients::add(const FlatGradients& right) {
  for (std::size_t entry = 0; entry < places_.size(); ++entry) {
    const DType dtype = places_[entry].entry.dtype;
    const std::size_t offset = places_[entry].entry.offset;
    for_each_piece(entry, [&](std::size_t piece, const plan::Stretch& where) {
      const std::size_t at = offset + where.first * size_of(dtype);
      right.expect(piece, comm::parity(dtype, right.memory_.data() + at, where.count));
      const comm::Parities seen =
          comm::add_watched(dtype, memory_.data() + at, right.memory_.data() + at, where.count);
      expect(piece, seen.before);
      parities()[piece] = seen.after;
    });
  }
}

template <typename Body>
void FlatGradients::for_each_piece(std::size_t entry, const Body& body) const {
  const auto first = static_cast<std::int64_t>(pieces_->first_of_entry[entry]);
  const auto end = static_cast<std::int64_t>(pieces_->first_of_entry[entry + 1]);
  at::parallel_for(first, end, kGrain, [&](std::int64_t begin, std::int64_t stop) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(stop); ++i)
      body(i, pieces_->all[i]);
  });
}

void FlatGradients::expect(std::size_t piece, comm::Parity seen) const {
  if (seen != parities()[piece])
    faults_->note({Fault::What::kGradient, pieces_->all[piece], worker_});
}

// Takes what lies there for right.
void FlatGradients::look_at(std::size_t entry) {
  if (!watched()) return;
  const plan::Entry& of = places_[entry].entry;
  for_each_piece(entry, [&](std::size_t piece, const plan::Stretch& where) {
    const std::byte* const at = memory_.data() + of.offset + where.first * size_of(of.dtype);
    parities()[piece] = comm::parity(of.dtype, at, where.count);
  });
}

void FlatGradients::settle() {
  torch::NoGradGuard no_grad;
  for (std::size_t entry = 0; entry < places_.size(); ++entry) {
    Place& place = places_[entry];
    const torch::Tensor& grad = place.parameter.grad();
    check(entry);
    if (grad.defined()) {
      if (grad.data_ptr() != place.view.data_ptr()) adopt(entry);
      continue;
    }
    if (!place.hidden) {
      place.view.zero_();
      look_at(entry);
    }
    place.parameter.mutable_grad() = place.view;
    place.hidden = false;
  }
}

void FlatGradients::check(std::size_t entry) const {
  const Place& place = places_.at(entry);
  const torch::Tensor& grad = place.parameter.grad();
  const bool converted = place.parameter.scalar_type() != place.view.scalar_type() ||
                         place.parameter.device() != place.view.device();
  if (!converted && !(grad.defined() && grad.requires_grad())) return;
  throw BadInput(fmt::format(
      "the gradient of {} {}", place.entry.name,
      converted ? "is of another type or device than its parameter now: move or convert the module "
                  "before data_parallel(), not after"
                : "is part of a graph: use no create_graph"));
}

Buffer FlatGradients::bucket(const plan::Bucket& bucket) const {
  return {memory_.data() + bucket.offset, bucket.count(), bucket.dtype};
}

}  // namespace lockstep::replica
