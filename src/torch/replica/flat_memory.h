// Flat memory. Where workers share memory, each reaches the memory of all. On a GPU nobody else
// reaches it.
#pragma once

#include <lockstep/comm.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/layout.h"

namespace lockstep::replica {

// All workers of a replica, and those that share its parameters and the state of its updates: all
// of them, or on several hosts those of one host.
struct Workers {
  Comm& all;
  Comm& host;
};

// One memory for each worker, or one for all workers of a host if they share memory. kPerHostSeen:
// each of them also has a private view of it (HostCopy). kReduced: one for each worker, which Comm
// can reduce in two levels if there are several hosts.
enum class Copies { kPerWorker, kReduced, kPerHost, kPerHostSeen };

// All zero at first.
//
// Threads:   any may call it. Who may write to the memory when is its users' matter.
// Blocking:  the constructor, which is collective, at most the Comm's timeout.
// Failure:   Unavailable if there is too little memory; Mismatch if workers ask for different
//            sizes.
// Ownership: the memory lives as long as this object or any view of it.
class FlatMemory {
 public:
  FlatMemory(Comm& comm, std::size_t bytes, Copies copies, Device device = {});

  // For other workers, the memory that this worker has shared before; its values stay. So no page has
  // to be found and zeroed, which takes longer than to fill it. New memory, all zero, if that was not
  // shared. kReduced. Collective, also with workers that make new memory of that size.
  static FlatMemory again(Comm& comm, const FlatMemory& before);

  // Whether of() reaches the memory of every worker. True in a world of one, false on a GPU.
  bool shared() const { return shared_; }
  // If not: whether the workers of this host reach it, so that Comm can reduce it in two levels.
  bool on_host() const { return on_host_; }
  Device device() const { return device_; }

  std::byte* data() const { return of(rank_); }
  // The memory of a worker; with one copy per host, the same for all. If it is not shared: this
  // worker's, whatever the rank.
  std::byte* of(int worker) const {
    return starts_[shared_ ? static_cast<std::size_t>(worker) : 0];
  }
  std::size_t bytes() const { return bytes_; }

  // With kPerHostSeen: the same memory, as this worker alone sees it.
  FlatMemory privately() const;

  // If workers share it, and all of them die, others can go on from it (control/legacy.h). The Comm is
  // the one that it was made with.
  enum class Use : std::uint8_t { kParameters, kGradients, kState, kCommits };
  void leave_behind(const Comm& comm, Use use) const;

  // Elements from an offset on.
  torch::Tensor as_tensor(c10::ScalarType type, std::size_t offset, std::size_t count) const;

  // An entry of this worker as a tensor with the sizes of `like`. It has the strides of `like`,
  // too, if those leave no gaps.
  torch::Tensor view(const plan::Entry& entry, const torch::Tensor& like) const;

 private:
  void take_from_host(Comm& comm, Copies copies, const FlatMemory* before);
  void take_pages(Comm& comm, bool one_copy) const;
  void take_own(const std::shared_ptr<SharedArena>& of_host);

  FlatMemory() = default;

  Device device_;
  int rank_ = 0;
  std::size_t bytes_ = 0;
  bool shared_ = false;
  bool on_host_ = false;
  std::shared_ptr<void> kept_;      // the owner of the memory: an Arena, a SharedArena or a tensor
  std::vector<std::byte*> starts_;  // by worker; if not shared: only this worker's
  std::byte* private_ = nullptr;    // with kPerHostSeen: the private mapping
};

}  // namespace lockstep::replica
