// A model's weights, cut into a slice for each worker, which owns it in an asynchronous round without shared memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "torch/divergence/watch.h"
#include "torch/replica/replicated.h"

namespace lockstep::steps {

// Pieces, and the bytes from the first of them to those of the next slice.
struct Slice {
  divergence::PieceRange pieces;
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t bytes() const { return end - begin; }
};

// As many elements each as whole pieces allow; one may be empty.
std::vector<Slice> slices_of(const replica::ModelPlan& plan, int workers);

// A model and its slices. One owner has the buffers, too: the clerk, which is the leader.
struct Cut {
  static constexpr int kClerk = 0;
  std::vector<Slice> slices;
  std::size_t bytes = 0;    // of all weights
  std::size_t buffers = 0;  // bytes
  bool compensates = false;

  const Slice& of(int owner) const { return slices[static_cast<std::size_t>(owner)]; }
  std::size_t buffers_of(int owner) const { return owner == kClerk ? buffers : 0; }
  // What an owner gives to a worker: its slice, and the buffers. What it gets of a gradient: its slice, that of the weights which
  // the gradient was computed from if delays are compensated, and the buffers.
  std::size_t given_by(int owner) const { return of(owner).bytes() + buffers_of(owner); }
  std::size_t sent_to(int owner) const {
    return of(owner).bytes() * (compensates ? 2 : 1) + buffers_of(owner);
  }
};

// Memory with the layout of a model, of which often only a slice is written to: pages that nobody touches take no memory.
class SliceMemory {
 public:
  explicit SliceMemory(std::size_t bytes) : bytes_(new std::byte[bytes]) {}  // NOLINT: not zeroed
  std::byte* data() const { return bytes_.get(); }
  void put(const Slice& slice, const std::byte* from) {
    if (slice.bytes() > 0) std::memcpy(data() + slice.begin, from, slice.bytes());
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace lockstep::steps
