// How the model of an asynchronous round gets weights from memory of the host, and what its backward pass leaves there.
//
//   host     on a CPU: gradients are read where backward leaves them
//   device   on a GPU: all travels through pinned memory. The host waits once for each gradient
#pragma once

#include <lockstep/step.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "torch/replica/replicated.h"

namespace lockstep::steps {

// A tensor of the host like another one, in memory that begins there. Dense, even if the other is not.
torch::Tensor tensor_at(std::byte* first, const torch::Tensor& like);

// What a backward pass has left: on the host, with the layout of the model; and buffers, packed. The memory is a RoundModel's, and
// is valid until that gets other weights or its gradients are cleared.
struct RoundGradient {
  const std::byte* values = nullptr;
  const std::byte* weights = nullptr;  // that the pass began with
  std::vector<std::byte> buffers;
};

// The model that a worker computes gradients with.
//
// Threads:   one caller at a time; on a GPU always with the same current stream.
// Blocking:  on a GPU, at most the timeout: wait() and gradient(), until it has done what was queued; show(), until the copies of
//            its last call are done.
// Failure:   on a GPU Timeout, and Unavailable when the device fails.
// Ownership: borrows the model, which outlives it.
class RoundModel {
 public:
  virtual ~RoundModel() = default;
  // Until a GPU has done what was queued.
  virtual void wait() = 0;
  virtual void show(const std::byte* weights, const std::vector<std::byte>& buffers) = 0;
  virtual RoundGradient gradient() = 0;
  // How passes ran on a GPU.
  const ShardCounts& counts() const { return counts_; }

 protected:
  ShardCounts counts_;
};

// For the device of the model. (device_choice.cpp)
std::unique_ptr<RoundModel> make_round_model(replica::Replicated& model,
                                             std::chrono::milliseconds timeout);

// (host_round_model.cpp, device_round_model.cpp)
std::unique_ptr<RoundModel> make_host_round_model(replica::Replicated& model);
std::unique_ptr<RoundModel> make_device_round_model(replica::Replicated& model,
                                                    std::chrono::milliseconds timeout);

}  // namespace lockstep::steps
