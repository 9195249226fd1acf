// Gives all workers the same buffers: those of one worker, the source, as DDP does, or the mean. All
// buffers go as one message: they are small, and each message costs its latency.
//
// The source is rank 0. In a loop of UnevenInputs it is the first worker that has a batch.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "control/turns.h"
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
  virtual void start(Comm& comm, const control::Presence& presence) = 0;
  virtual void finish(Comm& comm, const control::Presence& presence) = 0;

  // All buffers, if they lie in one memory; else null.
  virtual const FlatMemory* memory() const { return nullptr; }
};

// Buffers stay where the program has them. A copy of their bytes travels.
class HostBufferSync : public BufferSync {
 public:
  explicit HostBufferSync(std::vector<NamedTensor> buffers) : buffers_(std::move(buffers)) {}

  void start(Comm& comm, const control::Presence& presence) override;
  void finish(Comm& comm, const control::Presence& presence) override;

 private:
  std::vector<NamedTensor> buffers_;
  std::vector<std::byte> staging_;
  Work work_;
};

// Where workers share memory: the source leaves a copy there, before all workers meet at the end of a
// pass, and the others read it before they meet again.
class SharedBufferSync : public BufferSync {
 public:
  SharedBufferSync(std::vector<NamedTensor> buffers, FlatMemory memory)
      : buffers_(buffers), memory_(std::move(memory)), messages_(std::move(buffers)) {}

  void start(Comm& comm, const control::Presence& presence) override;
  void finish(Comm& comm, const control::Presence& presence) override;

 private:
  bool fits() const;

  std::vector<NamedTensor> buffers_;
  FlatMemory memory_;
  HostBufferSync messages_;  // if the program has given buffers another size, on all workers
};

// The mean of floating-point buffers over the workers that are present, with the same bits on all.
// Others, such as counters, are those of the source. Works on every device.
class MeanBufferSync : public BufferSync {
 public:
  // `source` gives all workers the buffers of the source.
  MeanBufferSync(const std::vector<NamedTensor>& buffers, std::unique_ptr<BufferSync> source);

  void start(Comm& comm, const control::Presence& presence) override;
  void finish(Comm& comm, const control::Presence& presence) override;
  const FlatMemory* memory() const override { return source_->memory(); }

 private:
  // Buffers of one type travel together.
  struct Kind {
    std::vector<torch::Tensor> buffers;
    torch::Tensor flat;
    Work work;
  };
  std::vector<Kind> kinds_;
  std::unique_ptr<BufferSync> source_;
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
