// The buffers of a model (BatchNorm's statistics) while the shards of a step run.
//
// Every shard of a step begins with the buffers that the step before has left, wherever it runs. After the step all
// workers have the same buffers again: the first shard's, or the mean over shards.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/job.h>

#include <memory>
#include <vector>

#include "torch/step/model_step.h"

namespace lockstep::steps {

// The buffers of one model in an open loop.
//
// Threads:   one caller at a time.
// Blocking:  end_step(), which is collective, at most the Comm's timeout. It never waits for a GPU.
// Failure:   that of the collective.
// Ownership: the Loop owns it; it shares the tensors.
class ShardBuffers {
 public:
  virtual ~ShardBuffers() = default;
  virtual void begin_step() = 0;
  virtual void begin_shard() = 0;
  virtual void end_shard(int shard) = 0;  // after its forward
  // `ran`: all shards that had samples in the step, also those of other workers.
  virtual void end_step(Comm& comm, const std::vector<int>& ran) = 0;
};

// Which values buffers have after a step.
struct BufferRule {
  ShardBufferRule rule = ShardBufferRule::kFirstShard;
  int shards = 0;  // of the job
};

// For the device of the model. (device_choice.cpp)
std::unique_ptr<ShardBuffers> make_shard_buffers(const ModelView& model, BufferRule rule);

// On a GPU.
std::unique_ptr<ShardBuffers> make_device_buffers(const ModelView& model, BufferRule rule);

// In the host's memory.
std::unique_ptr<ShardBuffers> make_host_buffers(std::vector<NamedTensor> buffers, BufferRule rule);

}  // namespace lockstep::steps
