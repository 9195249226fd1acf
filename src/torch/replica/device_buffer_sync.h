// Buffers on a GPU: they are moved into one memory at first, and travel from there.
#pragma once

#include "torch/replica/buffer_sync.h"

namespace lockstep::replica {

// Threads, Blocking, Failure, Ownership: as BufferSync. At least one buffer.
class DeviceBufferSync : public BufferSync {
 public:
  DeviceBufferSync(Comm& comm, const std::vector<NamedTensor>& buffers, Device device);

  void start(Comm& comm) override;
  void finish(Comm& comm) override;
  const FlatMemory* memory() const override { return &memory_; }

 private:
  FlatMemory memory_;
  Work work_;
};

}  // namespace lockstep::replica
