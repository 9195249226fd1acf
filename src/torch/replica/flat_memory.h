// Memory for values in the fixed layout: this worker's, and everybody's where workers share memory. Or on a GPU, where
// nobody else reaches it.
#pragma once

#include <lockstep/comm.h>
#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "plan/layout.h"

namespace lockstep::replica {

enum class Copies { kPerWorker, kPerHost };

// Threads:   any may read it; the memory, as its users agree.
// Blocking:  the constructor, which is collective, at most the Comm's timeout.
// Failure:   Unavailable when there is not that much memory.
// Ownership: the memory lives as long as it or any of its views. Zero at first.
class FlatMemory {
 public:
  FlatMemory(Comm& comm, std::size_t bytes, Copies copies, Device device = {});

  // Whether every worker's memory is reached here; in a world of one it is, but for that of a GPU.
  bool shared() const { return shared_; }
  Device device() const { return device_; }

  std::byte* data() const { return of(rank_); }
  // A worker's; with one copy per host, the same for all. Where it is not shared, this worker's.
  std::byte* of(int worker) const {
    return starts_[shared_ ? static_cast<std::size_t>(worker) : 0];
  }
  std::size_t bytes() const { return bytes_; }

  // Some elements from an offset in bytes on.
  torch::Tensor as_tensor(c10::ScalarType type, std::size_t offset, std::size_t count) const;

  // This worker's elements of an entry as a tensor with the sizes, and if possible the strides, of `like`.
  torch::Tensor view(const plan::Entry& entry, const torch::Tensor& like) const;

 private:
  void take_from_host(Comm& comm, Copies copies);

  Device device_;
  int rank_ = 0;
  std::size_t bytes_ = 0;
  bool shared_ = false;
  std::shared_ptr<void> kept_;      // what the memory belongs to
  std::vector<std::byte*> starts_;  // by worker; not shared: this worker's alone
};

}  // namespace lockstep::replica
