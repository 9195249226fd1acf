// The weights of a model on a GPU, sampled with nobody waiting for the device.
#pragma once

#include <chrono>
#include <optional>

#include "torch/device/device.h"
#include "torch/replica/weight_sample.h"

namespace lockstep::replica {

// Some words of each trained parameter, copied to the host behind what is queued.
//
// Threads:   one caller at a time.
// Blocking:  until what was queued in the last call is done, which was a step ago; at most the timeout.
// Failure:   Timeout.
// Ownership: shares the memory.
class DeviceWeightSample : public WeightSample {
 public:
  DeviceWeightSample(const plan::Layout& layout, const FlatMemory& memory,
                     std::chrono::milliseconds timeout);

  // Of what the last call has found; 1 at first.
  std::uint64_t take(std::uint64_t pass) override;

 private:
  torch::Tensor words_;                  // all memory of the trained parameters, in 32 bits each
  torch::Tensor positions_;              // of those that are looked at
  torch::Tensor on_host_;                // pinned
  std::optional<device::Event> copied_;  // of the last call
  Device device_;
  std::chrono::milliseconds timeout_;
};

}  // namespace lockstep::replica
