// The tensors of a model, sorted by what replication does with them.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <string>
#include <vector>

namespace lockstep::replica {

struct Model {
  std::vector<NamedTensor> parameters;  // each tensor once, under the first of its names
  std::vector<NamedTensor> trained;     // those of them that want gradients
  std::vector<NamedTensor> buffers;

  std::vector<NamedTensor> everything() const;  // parameters, then buffers
};

// BadInput for repeated names. `trained` stays empty.
Model sort_all(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers);

// The same with what is trained; BadInput for a model without anything to train.
Model sort_tensors(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers);

// Mismatch if the workers' models or options differ. Collective.
void agree_on_model(Comm& comm, const Model& model, const DataParallelOptions& options);

// Every worker's values become rank 0's. Collective.
void copy_from_leader(Comm& comm, const std::vector<NamedTensor>& tensors);

// Rank 0's buffers to all, as one message.
//
// Threads:   one caller at a time.
// Blocking:  finish(), at most the Comm's timeout.
// Failure:   that of the broadcast.
// Ownership: shares the tensors.
class BufferSync {
 public:
  explicit BufferSync(std::vector<NamedTensor> buffers) : buffers_(std::move(buffers)) {}

  void start(Comm& comm);
  void finish(Comm& comm);

 private:
  std::vector<NamedTensor> buffers_;
  std::vector<std::byte> staging_;
  Work work_;
};

}  // namespace lockstep::replica
