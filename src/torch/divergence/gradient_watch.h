// The gradients of a memory, watched: every piece that is written keeps its parity (comm/core/parity.h), and whoever reads
// a piece finds out whether it has changed since.
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>

#include "flat/parity.h"
#include "plan/layout.h"
#include "plan/slices.h"
#include "torch/divergence/fault.h"

namespace lockstep::divergence {

// Threads:   one caller at a time; works on the threads that LibTorch uses.
// Blocking:  never.
// Failure:   none: a difference is a Fault of this worker, which is noted.
// Ownership: borrows all of it.
class GradientWatch {
 public:
  // `memory` is that of the gradients; `parities` has one for each piece.
  GradientWatch(std::byte* memory, flat::Parity* parities, const plan::Pieces& pieces,
                FirstFault& faults, int worker)
      : memory_(memory), parities_(parities), pieces_(pieces), faults_(faults), worker_(worker) {}

  // 0 + g into the place of an entry, or g is added to what is there; either way one pass. `given` may be a half type, and
  // its place float32.
  void move_in(std::size_t number, const plan::Entry& entry, const void* gradient, DType given,
               bool adds) const;

  // Adds what another memory has in the same place.
  void add(std::size_t number, const plan::Entry& entry, const GradientWatch& right) const;

  // Takes what lies there for right.
  void look_at(std::size_t number, const plan::Entry& entry) const;

 private:
  void expect(std::size_t piece, flat::Parity seen) const;
  template <typename Body>
  void for_each_piece(std::size_t number, const Body& body) const;

  std::byte* memory_;
  flat::Parity* parities_;
  const plan::Pieces& pieces_;
  FirstFault& faults_;
  int worker_;
};

}  // namespace lockstep::divergence
