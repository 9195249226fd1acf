// Sends the buffers of rank 0 to all workers at the end of a synchronised pass, as DDP does. All
// buffers go as one message: they are small, and each message costs its latency.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "torch/replica/flat_memory.h"
#include "torch/replica/model.h"

namespace lockstep::replica {

// Owned by Parts.
//
// Threads:   one caller at a time.
// Blocking:  finish(), at most the Comm's timeout. It does not wait for a GPU.
// Failure:   that of the broadcast.
// Ownership: shares the tensors.
class BufferSync {
 public:
  virtual ~BufferSync() = default;

  // Two calls, so that the message travels while gradients are reduced. Where workers share memory,
  // start() comes before a worker tells that its gradients are there, and finish() before the
  // reduction ends.
  virtual void start(Comm& comm) = 0;
  virtual void finish(Comm& comm) = 0;

  // All buffers, if they lie in one memory; else null.
  virtual const FlatMemory* memory() const { return nullptr; }
};

// Buffers stay where the program has them. A copy of their bytes travels.
class HostBufferSync : public BufferSync {
 public:
  explicit HostBufferSync(std::vector<NamedTensor> buffers) : buffers_(std::move(buffers)) {}

  void start(Comm& comm) override;
  void finish(Comm& comm) override;

 private:
  std::vector<NamedTensor> buffers_;
  std::vector<std::byte> staging_;
  Work work_;
};

// Where workers share memory: rank 0 leaves a copy there, before all workers meet at the end of a
// pass, and the others read it before they meet again.
class SharedBufferSync : public BufferSync {
 public:
  SharedBufferSync(std::vector<NamedTensor> buffers, FlatMemory memory)
      : buffers_(buffers), memory_(std::move(memory)), messages_(std::move(buffers)) {}

  void start(Comm& comm) override;
  void finish(Comm& comm) override;

 private:
  bool fits() const;

  std::vector<NamedTensor> buffers_;
  FlatMemory memory_;
  HostBufferSync messages_;  // if the program has given buffers another size, on all workers
};

// On a GPU: moves the buffers into one flat memory, from which they travel without a copy. There is
// at least one. Collective.
std::unique_ptr<BufferSync> make_device_buffer_sync(Comm& comm,
                                                    const std::vector<NamedTensor>& buffers,
                                                    Device device);

// The class for the device of the model, and for how workers reach each other. Shares the tensors.
// Collective.
std::unique_ptr<BufferSync> buffer_sync_of(Comm& comm, const Model& model,
                                           const DataParallelOptions& options);

}  // namespace lockstep::replica
