#include "torch/replica/flat_gradients.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "torch/device/device.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {
namespace {

// Pieces below which a second thread costs more than it saves.
constexpr std::int64_t kGrain = 4;

// A stretch of half-precision values as float32, some at a time: calls `body` with the first and with their number.
template <typename Body>
void widened(DType half, const std::byte* from, std::size_t count, const Body& body) {
  std::array<float, comm::kPiece> row;
  for (std::size_t first = 0; first < count; first += row.size()) {
    const std::size_t part = std::min(row.size(), count - first);
    comm::widen(half, from + first * size_of(half), row.data(), part);
    body(row.data(), first, part);
  }
}

}  // namespace

FlatGradients::FlatGradients(const std::vector<NamedTensor>& parameters, const plan::Layout& layout,
                             FlatMemory memory)
    : memory_(std::move(memory)) {
  places_.reserve(layout.entries().size());
  for (const plan::Entry& entry : layout.entries()) {
    torch::Tensor parameter = parameters[entry.registered].tensor;
    const bool wide = entry.dtype != reducible_dtype(parameter, entry.name);
    const auto like = wide ? torch::empty_like(parameter, torch::kFloat32) : parameter;
    places_.push_back({entry, parameter, memory_.view(entry, like), parameter.scalar_type()});
    wide_ = wide_ || wide;
  }
}

void FlatGradients::watch(FlatMemory parities, const plan::Pieces& pieces, FirstFault& faults,
                          int worker) {
  watched_.emplace(Watched{std::move(parities), &pieces, &faults, worker});
}

void FlatGradients::Place::attach() {
  if (wide()) return hide();
  parameter.mutable_grad() = view;
  hidden = false;
}

void FlatGradients::Place::hide() {
  parameter.mutable_grad() = torch::Tensor();
  hidden = true;
}

void FlatGradients::attach() {
  for (Place& place : places_) place.attach();
}

void FlatGradients::clear() {
  for (Place& place : places_) {
    place.parameter.mutable_grad() = torch::Tensor();
    place.hidden = false;
  }
}

void FlatGradients::hide() {
  for (Place& place : places_) place.hide();
}

void FlatGradients::adopt(std::size_t entry, const torch::Tensor& /*incoming*/) {
  check(entry);
  Place& place = places_.at(entry);
  if (!place.parameter.grad().defined()) return;
  torch::NoGradGuard no_grad;
  // What a sparse one adds up by itself is rounded as its type is.
  const torch::Tensor grad =
      place.wide() ? place.parameter.grad().to_dense() : place.parameter.grad();
  const bool is_in_place = is_in(grad, place.view);
  if (watched() && !is_in_place && grad.scalar_type() == place.type &&
      in_the_same_order(grad, place.view)) {
    move_in_watched(entry, grad);
  } else if (!is_in_place) {
    move_in(place, grad);
    look_at(entry);
  } else {
    look_at(entry);  // backward has added to it where it lies
  }
  place.attach();
}

void FlatGradients::move_in(Place& place, const torch::Tensor& grad) {
  if (place.hidden) {
    // A sparse one would be added element by element, in another order than where it has a memory to itself.
    place.view.add_(grad.layout() == torch::kStrided ? grad : grad.to_dense());
  } else if (grad.layout() == torch::kStrided) {
    // The number is no tensor of a GPU, which would take a kernel of its own.
    at::add_out(place.view, grad, torch::scalar_tensor(0, grad.options().device(torch::kCPU)));
  } else {
    place.view.zero_().add_(grad);
  }
}

// 0 + g into its place, or added to what is hidden there; either way one pass.
void FlatGradients::move_in_watched(std::size_t entry, const torch::Tensor& grad) {
  const Place& place = places_[entry];
  const DType dtype = place.entry.dtype;
  const DType given = reducible_dtype(grad, place.entry.name);
  const auto* const made = static_cast<const std::byte*>(grad.data_ptr());
  for_each_piece(entry, [&](std::size_t piece, const plan::Stretch& where) {
    comm::Parities seen;
    const auto move = [&](const void* from, std::size_t first, std::size_t count) {
      std::byte* const into =
          memory_.data() + place.entry.offset + (where.first + first) * size_of(dtype);
      if (!place.hidden) {
        seen.after ^= comm::copy_watched(dtype, from, into, count);
        return;
      }
      const comm::Parities part = comm::add_watched(dtype, into, from, count);
      seen.before ^= part.before;
      seen.after ^= part.after;
    };
    const std::byte* const from = made + where.first * size_of(given);
    if (place.wide()) {
      widened(given, from, where.count, move);
    } else {
      move(from, 0, where.count);
    }
    if (place.hidden) expect(piece, seen.before);
    parities()[piece] = seen.after;
  });
}

void FlatGradients::add(const FlatGradients& right, const std::vector<plan::Bucket>& buckets) {
  if (watched()) return add_watched(right);
  for (const plan::Bucket& bucket : buckets) {
    const Buffer left = this->bucket(bucket);
    comm::combine(left.dtype, ReduceOp::kSum, left.data, right.bucket(bucket).data, left.data,
                  left.count);
  }
}

void FlatGradients::add_watched(const FlatGradients& right) {
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

void FlatGradients::take(const FlatGradients& sums) {
  for (std::size_t entry = 0; entry < places_.size(); ++entry) {
    const plan::Entry& to = places_[entry].entry;
    const plan::Entry& from = sums.places_[entry].entry;
    const std::byte* const values = sums.memory_.data() + from.offset;
    if (from.dtype == to.dtype) {
      std::memcpy(memory_.data() + to.offset, values, to.bytes());
    } else {
      comm::narrow(to.dtype, reinterpret_cast<const float*>(values), memory_.data() + to.offset,
                   to.count);
    }
  }
}

template <typename Body>
void FlatGradients::for_each_piece(std::size_t entry, const Body& body) const {
  const auto first = static_cast<std::int64_t>(watched_->pieces->first_of_entry[entry]);
  const auto end = static_cast<std::int64_t>(watched_->pieces->first_of_entry[entry + 1]);
  at::parallel_for(first, end, kGrain, [&](std::int64_t begin, std::int64_t stop) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(stop); ++i)
      body(i, watched_->pieces->all[i]);
  });
}

void FlatGradients::expect(std::size_t piece, comm::Parity seen) const {
  if (seen != parities()[piece])
    watched_->faults->note(
        {Fault::What::kGradient, watched_->pieces->all[piece], watched_->worker});
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
      if (!is_in(grad, place.view)) adopt(entry);
      continue;
    }
    if (!place.hidden) {
      place.view.zero_();
      look_at(entry);
    }
    place.attach();
  }
}

void FlatGradients::check(std::size_t entry) const {
  const Place& place = places_.at(entry);
  const torch::Tensor& grad = place.parameter.grad();
  const bool converted = place.parameter.scalar_type() != place.type ||
                         place.parameter.device() != place.view.device();
  if (!converted && !(grad.defined() && grad.requires_grad())) return;
  throw BadInput(fmt::format(
      "the gradient of {} {}", place.entry.name,
      converted ? "is of another type or device than its parameter now: move or convert the module "
                  "before data_parallel(), not after"
                : "is part of a graph: use no create_graph"));
}

std::int64_t FlatGradients::version(std::size_t entry) const {
  const Place& place = places_[entry];
  const torch::Tensor& grad = place.parameter.grad();
  if (!grad.defined() || !(is_in(grad, place.view) || is_made(entry, grad))) return -1;
  return static_cast<std::int64_t>(grad._version());
}

std::vector<std::int64_t> FlatGradients::versions() const {
  std::vector<std::int64_t> all;
  all.reserve(places_.size());
  for (std::size_t entry = 0; entry < places_.size(); ++entry) all.push_back(version(entry));
  return all;
}

// From its first element to its last, in this memory's layout.
Buffer FlatGradients::bucket(const plan::Bucket& bucket) const {
  const plan::Entry& first = places_[bucket.first_entry].entry;
  const plan::Entry& last = places_[bucket.first_entry + bucket.entries - 1].entry;
  const std::size_t bytes = last.offset + last.bytes() - first.offset;
  return {memory_.data() + first.offset, bytes / size_of(first.dtype), first.dtype,
          memory_.device(), device::current_stream(memory_.device())};
}

}  // namespace lockstep::replica
