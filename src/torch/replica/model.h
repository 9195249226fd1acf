// The tensors of a model, sorted by what replication does with them.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <optional>
#include <string>
#include <vector>

#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

struct Model {
  std::vector<NamedTensor> parameters;  // each tensor once, under the first of its names
  std::vector<NamedTensor> trained;     // those of them that want gradients
  std::vector<NamedTensor> buffers;

  std::vector<NamedTensor> everything() const;  // parameters, then buffers
};

// BadInput for repeated names, and for tensors on several devices. `trained` stays empty.
Model sort_all(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers);

// The same with what is trained; BadInput for a model without anything to train.
Model sort_tensors(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers);

// Mismatch if the workers' models or options differ. Collective.
void agree_on_model(Comm& comm, const Model& model, const DataParallelOptions& options);

// Every worker's values become one rank's. Collective.
void copy_from(Comm& comm, int source, const std::vector<NamedTensor>& tensors);

// Where the model is. BadInput when this world's engine cannot reach it.
Device device_of(const Model& model, const Comm& comm);

// Rank 0's buffers to all, as one message. Those on a GPU are moved into one memory at first, and travel from there.
//
// Threads:   one caller at a time.
// Blocking:  finish(), at most the Comm's timeout.
// Failure:   that of the broadcast.
// Ownership: shares the tensors.
class BufferSync {
 public:
  BufferSync(Comm& comm, std::vector<NamedTensor> buffers, Device device);

  void start(Comm& comm);
  void finish(Comm& comm);

  // All buffers on a GPU; nothing on the CPU, or if there are none.
  const std::optional<FlatMemory>& on_device() const { return memory_; }

 private:
  std::vector<NamedTensor> buffers_;
  std::vector<std::byte> staging_;
  std::optional<FlatMemory> memory_;
  Work work_;
};

}  // namespace lockstep::replica
