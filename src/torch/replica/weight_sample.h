// A digest of a few weights of every parameter, by which workers find out that their replicas have parted: nearly every
// element differs then.
#pragma once

#include <lockstep/data_parallel.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "plan/layout.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

// One line of the cache of every entry of a memory of the CPU, as a digest; `choice` says which.
std::uint64_t sample_lines(const FlatMemory& memory, const plan::Layout& layout,
                           std::uint64_t choice);

// Threads:   one caller at a time.
// Blocking:  never; on a GPU until what the last call has queued is done.
// Failure:   none; on a GPU Timeout.
// Ownership: shares the tensors.
class WeightSample {
 public:
  virtual ~WeightSample() = default;

  // Of the weights at this pass, by its number. Never 0.
  virtual std::uint64_t take(std::uint64_t pass) = 0;
};

// One line of the cache of every parameter, frozen ones, too, at a place that depends on the number of the pass.
class HostWeightSample : public WeightSample {
 public:
  explicit HostWeightSample(std::vector<NamedTensor> parameters)
      : parameters_(std::move(parameters)) {}

  std::uint64_t take(std::uint64_t pass) override;

 private:
  std::vector<NamedTensor> parameters_;
};

struct Parts;

// On a GPU: some words of each trained parameter, copied to the host behind what is queued. take() says what the call
// before has found, 1 at first: nobody waits for the device but until what was queued a step ago is done.
std::unique_ptr<WeightSample> make_device_weight_sample(const Parts& parts);

// The one for where the model is. Shares the tensors.
std::unique_ptr<WeightSample> weight_sample_of(const Parts& parts);

}  // namespace lockstep::replica
