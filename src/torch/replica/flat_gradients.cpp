#include "torch/replica/flat_gradients.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "torch/device/device.h"
#include "torch/kernels/device_update.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {
namespace {

// Pieces below which a second thread costs more than it saves.
constexpr std::int64_t kGrain = 4;

bool in_the_same_order(const torch::Tensor& a, const torch::Tensor& b) {
  return a.layout() == torch::kStrided && a.device() == b.device() && a.strides() == b.strides() &&
         b.is_non_overlapping_and_dense();
}

// Only what is strided has memory of its own.
bool is_in(const torch::Tensor& grad, const torch::Tensor& view) {
  return grad.layout() == torch::kStrided && grad.data_ptr() == view.data_ptr();
}

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
                             FlatMemory memory, std::shared_ptr<Gather> gather)
    : memory_(std::move(memory)), gather_(std::move(gather)) {
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
  parities_.emplace(std::move(parities));
  pieces_ = &pieces;
  faults_ = &faults;
  worker_ = worker;
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

bool FlatGradients::Place::is_made(const torch::Tensor& grad) const {
  return made && made->lock().get() == grad.unsafeGetTensorImpl();
}

void FlatGradients::Place::note_made(const torch::Tensor& grad, const torch::Tensor& incoming) {
  if (is_made(grad)) return;  // and was added to
  made.emplace(grad.getIntrusivePtr());
  own = has_own_memory(grad, incoming);
}

// Packs of 16 bytes fit into its memory, as they do into its place.
bool FlatGradients::Place::stays() const {
  constexpr std::uintptr_t kPack = 16;
  const torch::Tensor& grad = parameter.grad();
  return grad.defined() && is_made(grad) && own && !hidden && !wide() &&
         grad.scalar_type() == type && in_the_same_order(grad, view) && !is_in(grad, view) &&
         reinterpret_cast<std::uintptr_t>(grad.data_ptr()) % kPack == 0;
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

void FlatGradients::adopt(std::size_t entry, const torch::Tensor& incoming) {
  check(entry);
  Place& place = places_.at(entry);
  if (!place.parameter.grad().defined()) return;
  if (on_device()) return place.note_made(place.parameter.grad(), incoming);
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

// For one that the kernel cannot read.
void FlatGradients::bring_alone(std::size_t entry) {
  Place& place = places_[entry];
  const torch::Tensor& grad = place.parameter.grad();
  if (!grad.defined() || is_in(grad, place.view)) return;
  move_in(place, place.wide() ? grad.to_dense() : grad);
}

void FlatGradients::bring(const plan::Bucket& bucket) {
  bring_all_but(bucket, std::vector<bool>(bucket.entries, false));
}

// What is gathered is 0 + g, and what stays is g: a sum of nothing but -0 is -0 there, and else +0. An update adds 0 to
// whatever it reads by whereabouts(), and squares have no sign: no weight depends on it.
FlatGradients::Brought FlatGradients::bring_small(const plan::Bucket& bucket,
                                                  const std::vector<plan::Lot>& lots) {
  std::vector<bool> stays(bucket.entries, false);
  for (const plan::Lot& lot : lots)
    stays[lot.first_entry - bucket.first_entry] = lot.alone && places_[lot.first_entry].stays();
  bring_all_but(bucket, stays);
  Brought brought;
  void* const stream = device::current_stream(memory_.device());
  for (const plan::Lot& lot : lots) {
    const Place& place = places_[lot.first_entry];
    void* data = memory_.data() + place.entry.offset;
    if (stays[lot.first_entry - bucket.first_entry]) {
      brought.outside.push_back(place.parameter.grad());
      data = brought.outside.back().data_ptr();
    }
    brought.pieces.push_back({data, lot.count, place.entry.dtype, memory_.device(), stream});
  }
  return brought;
}

// Either all of a bucket are hidden, or none is: clear() and hide() are for all. `stays`: by entry of the bucket.
void FlatGradients::bring_all_but(const plan::Bucket& bucket, const std::vector<bool>& stays) {
  torch::NoGradGuard no_grad;
  const std::size_t end = bucket.first_entry + bucket.entries;
  const bool adds = places_[bucket.first_entry].hidden;
  std::vector<const void*> readable;
  bool all_there = true;
  for (std::size_t entry = bucket.first_entry; entry < end; ++entry) {
    check(entry);
    const Place& place = places_[entry];
    const torch::Tensor& grad = place.parameter.grad();
    if (stays[entry - bucket.first_entry]) {
      readable.push_back(kernels::left_alone());
      continue;
    }
    const bool can_read =
        grad.defined() && grad.scalar_type() == place.type && in_the_same_order(grad, place.view);
    readable.push_back(can_read ? grad.data_ptr() : nullptr);
    all_there = all_there && (grad.defined() ? is_in(grad, place.view) : adds);
  }
  if (!all_there)
    gather_->run(bucket, readable, {memory_, places_[bucket.first_entry].entry.dtype, wide_}, adds);
  for (std::size_t entry = bucket.first_entry; entry < end; ++entry) {
    if (stays[entry - bucket.first_entry]) continue;
    if (readable[entry - bucket.first_entry] == nullptr) bring_alone(entry);
    places_[entry].attach();
  }
}

void FlatGradients::recheck_owners() {
  if (!on_device()) return;
  for (Place& place : places_) {
    const torch::Tensor& grad = place.parameter.grad();
    if (!grad.defined() || grad.layout() != torch::kStrided) continue;
    place.own = place.own && grad.use_count() == 1 && grad.storage().use_count() == 1;
  }
}

bool FlatGradients::owns(std::size_t entry) const {
  const Place& place = places_[entry];
  return place.own && place.parameter.grad().defined() && place.is_made(place.parameter.grad());
}

void FlatGradients::set(std::size_t entry, const torch::Tensor& grad, bool own) {
  Place& place = places_[entry];
  place.parameter.mutable_grad() = grad;
  place.made.emplace(grad.getIntrusivePtr());
  place.own = own;
}

std::optional<std::vector<const void*>> FlatGradients::whereabouts() const {
  std::vector<const void*> all;
  all.reserve(places_.size());
  for (const Place& place : places_) {
    const torch::Tensor& grad = place.parameter.grad();
    if (!grad.defined() || place.hidden || grad.scalar_type() != place.view.scalar_type() ||
        !in_the_same_order(grad, place.view))
      return std::nullopt;
    all.push_back(grad.data_ptr());
  }
  return all;
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

void FlatGradients::take(const FlatGradients& sums) {
  for (std::size_t entry = 0; entry < places_.size(); ++entry) {
    if (on_device()) {
      torch::NoGradGuard no_grad;
      places_[entry].view.copy_(sums.places_[entry].view);
      continue;
    }
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
  if (!grad.defined() || !(is_in(grad, place.view) || place.is_made(grad))) return -1;
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
