// The float32 masters of half parameters, where an update on the CPU computes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "flat/fold.h"
#include "flat/half.h"
#include "flat/parity.h"
#include "torch/optim/update.h"

namespace lockstep::optim {

// What an update computes on: a piece of the parameters, or of their float32 masters if they have a
// half type. The parameters are then rounded from the masters.
//
//   refreshed   where a master is not rounded to what the parameter has, the program has written to
//               the parameter, or there was no step yet: the master becomes the parameter
//   widened     a half gradient is multiplied by the factor of clipping and unscaling in float32.
//               So small float16 gradients that were scaled do not vanish
class Master {
 public:
  Master(const Trained& trained, const plan::Stretch& piece) : piece_(piece) {
    const plan::Layout& layout = trained.model->layout();
    half_ = layout.entries()[piece.entry].dtype;
    parameter_ = trained.model->parameters().data() + replica::offset_of(layout, piece);
    if (!trained.state.has_master(piece.entry)) return;
    master_ = reinterpret_cast<float*>(trained.state.masters()->data() +
                                       replica::offset_of(trained.state.layout(), piece));
    refresh();
  }

  void* values() const { return master_ == nullptr ? static_cast<void*>(parameter_) : master_; }

  // The gradient that the update reads: `read`, what a reader has read; or if the gradients are in
  // one memory already, what is there, times the factor.
  const void* widened(const void* read, const GradientSource* gathered) {
    if (master_ == nullptr) return read;
    if (gathered != nullptr)
      read = gathered->operands.front() + replica::offset_of(*gathered->layout, piece_);
    const double limit = gathered == nullptr ? 0 : gathered->limit;
    const auto factor = gathered == nullptr ? 1.0F : static_cast<float>(gathered->factor);
    Halves limited;
    if (limit > 0 && factor == 1) {  // as a reader limits
      flat::limit(half_, limit, read, limited.data(), piece_.count);
      read = limited.data();
    }
    flat::widen(half_, read, wide_.data(), piece_.count);
    if (factor == 1) return wide_.data();
    for (std::size_t i = 0; i < piece_.count; ++i) wide_[i] *= factor;
    if (limit > 0) flat::limit(DType::kFloat32, limit, wide_.data(), wide_.data(), piece_.count);
    return wide_.data();
  }

  void round() const {
    if (master_ != nullptr) flat::narrow(half_, master_, parameter_, piece_.count);
  }

  // What `body`, an update with parity, has seen, and the parameters with it.
  template <typename Body>
  flat::Parities parities_around(const Body& body) const {
    if (master_ == nullptr) return body();
    const flat::Parity before = flat::parity(half_, parameter_, piece_.count);
    flat::Parities seen = body();
    round();
    seen.before ^= before;
    seen.after ^= flat::parity(half_, parameter_, piece_.count);
    return seen;
  }

 private:
  using Halves = std::array<std::uint16_t, plan::kPieceElements>;

  void refresh() {
    Halves rounded;
    flat::narrow(half_, master_, rounded.data(), piece_.count);
    if (std::memcmp(rounded.data(), parameter_, piece_.count * sizeof(std::uint16_t)) == 0) return;
    flat::widen(half_, parameter_, wide_.data(), piece_.count);
    const auto* const now = reinterpret_cast<const std::uint16_t*>(parameter_);
    for (std::size_t i = 0; i < piece_.count; ++i) {
      if (rounded[i] != now[i]) master_[i] = wide_[i];
    }
  }

  const plan::Stretch& piece_;
  DType half_ = DType::kFloat32;
  std::byte* parameter_ = nullptr;
  float* master_ = nullptr;  // null: it has none
  std::array<float, plan::kPieceElements> wide_;
};

}  // namespace lockstep::optim
