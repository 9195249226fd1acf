// A digest of a few weights of every parameter, by which workers find out that their replicas have parted: nearly every
// element differs then.
#pragma once

#include <lockstep/data_parallel.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/layout.h"
#include "torch/device/device.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

// One line of the cache of every entry of a memory of the CPU, as a digest; `choice` says which.
std::uint64_t sample_lines(const FlatMemory& memory, const plan::Layout& layout,
                           std::uint64_t choice);

// Threads:   one caller at a time.
// Blocking:  on a GPU, until what was queued in the last call is done, which was a step ago; at most the timeout.
// Failure:   Timeout, on a GPU.
// Ownership: shares the tensors.
class WeightSample {
 public:
  WeightSample(std::vector<NamedTensor> parameters, const plan::Layout& layout,
               const FlatMemory& memory, std::chrono::milliseconds timeout);

  // Never 0. On a CPU of the weights as they are: one line of the cache of each, at a place that depends on the number of
  // the pass. On a GPU of what the last call has found, 1 at first: some words of each trained parameter, copied to the host
  // behind what is queued, so that nobody waits for the device.
  std::uint64_t take(std::uint64_t pass);

 private:
  std::uint64_t take_on_device();

  std::vector<NamedTensor> parameters_;
  torch::Tensor words_;      // on a GPU: all memory of the trained parameters, in 32 bits each
  torch::Tensor positions_;  // of those that are looked at
  torch::Tensor on_host_;    // pinned
  std::optional<device::Event> copied_;  // of the last call
  Device device_;
  std::chrono::milliseconds timeout_;
};

}  // namespace lockstep::replica
