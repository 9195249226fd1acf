// A digest of a few weights of every parameter. Workers compare it to notice replicas that differ.
// A few weights are enough: after one wrong step nearly all differ.
#pragma once

#include <lockstep/data_parallel.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "plan/layout.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

// A digest of one cache line of every entry; `choice` decides which line. For memory of the CPU.
std::uint64_t sample_lines(const FlatMemory& memory, const plan::Layout& layout,
                           std::uint64_t choice);

// Owned by a DropIn.
//
// Threads:   one caller at a time.
// Blocking:  never; on a GPU until the copy that the last call queued is done.
// Failure:   none; on a GPU Timeout.
// Ownership: shares the tensors.
class WeightSample {
 public:
  virtual ~WeightSample() = default;

  // The digest for this pass. Never 0, which stands for "no sample".
  virtual std::uint64_t take(std::uint64_t pass) = 0;
};

// One cache line of every parameter, also of frozen ones. The number of the pass decides which.
class HostWeightSample : public WeightSample {
 public:
  explicit HostWeightSample(std::vector<NamedTensor> parameters)
      : parameters_(std::move(parameters)) {}

  std::uint64_t take(std::uint64_t pass) override;

 private:
  std::vector<NamedTensor> parameters_;
};

struct Parts;

// On a GPU: some words of each trained parameter. take() queues a copy of them to the host, and
// returns the digest of the copy that the call before queued; 1 at first. So the host never waits
// for the pass under way.
std::unique_ptr<WeightSample> make_device_weight_sample(const Parts& parts);

// The class for the device of the model. Shares the tensors.
std::unique_ptr<WeightSample> weight_sample_of(const Parts& parts);

}  // namespace lockstep::replica
