// Rank 0's buffers to all, as DDP does, at the end of a synchronised pass. As one message: buffers are small, and each
// message costs its latency.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "torch/replica/flat_memory.h"

namespace lockstep::replica {

// Threads:   one caller at a time.
// Blocking:  finish(), at most the Comm's timeout; on a GPU, not for the GPU.
// Failure:   that of the broadcast.
// Ownership: shares the tensors.
class BufferSync {
 public:
  virtual ~BufferSync() = default;

  virtual void start(Comm& comm) = 0;
  virtual void finish(Comm& comm) = 0;

  // All buffers, if they lie in one memory; else null.
  virtual const FlatMemory* memory() const { return nullptr; }
};

// Through a copy of their bytes.
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

// On a GPU: they are moved into one memory at first, and travel from there. At least one buffer. Collective.
std::unique_ptr<BufferSync> make_device_buffer_sync(Comm& comm,
                                                    const std::vector<NamedTensor>& buffers,
                                                    Device device);

// The one for where the buffers are. Shares the tensors.
std::unique_ptr<BufferSync> buffer_sync_of(Comm& comm, const std::vector<NamedTensor>& buffers,
                                           Device device);

}  // namespace lockstep::replica
