// Matrix products and convolutions in a half type. The weights and their gradients stay float32, or
// the weights are held in the half type, too, beside float32 masters.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep {

struct AutocastOptions {
  bool enabled = true;  // false: autocast is off in this scope, even inside another scope

  // True: a weight that is used several times is cast once, and its gradients are added in the half
  // type. False: it is cast for each use. A CUDA graph that is replayed after the weights have
  // changed needs false.
  bool cache_weights = true;
};

// Switches LibTorch's autocast on for one kind of device, as long as the object lives. Put it
// around forward and loss, and end it before backward(). Backward uses the types that forward used.
//
//   torch::Tensor loss;
//   {
//     lockstep::Autocast half(torch::kCUDA, torch::kBFloat16);
//     loss = torch::nll_loss(model->forward(batch.data), batch.target);
//   }
//   loss.backward();
//
// Threads:   works for the thread that made it. The same thread ends it. Scopes may be nested; the
//            inner one ends first.
// Blocking:  never.
// Failure:   BadInput for a device that is neither the CPU nor CUDA, for a type that is neither
//            bfloat16 nor float16, and for a type that this LibTorch does not support there.
// Ownership: restores the settings that it found. The outermost one releases the cast weights.
class Autocast {
 public:
  Autocast(torch::DeviceType device, torch::ScalarType dtype, AutocastOptions options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
  bool enabled_before_;
  torch::ScalarType dtype_before_;
  bool caches_before_;
};

// Changes the weights and biases of linear layers and convolutions to `dtype` for good. Without it
// Autocast casts them in every pass, and casts their gradients back. lockstep::optim keeps float32
// masters of half parameters. The masters start from the rounded values, so load weights before
// this call. Call it before data_parallel().
//
//   bits      A job of one shard with full batches gets the same bits as Autocast with float32
//             weights that start from the rounded values: passes read what the masters are rounded
//             to, and gradients come in the half type in both cases. A mean over several shards, or
//             over a short batch, is rounded to the half type once
//   not held  Frozen parameters, because they have no master. Parameters that another kind of
//             module has, too, such as an embedding that is also the output layer. Parameters of a
//             layer other than `weight` and `bias`
//   forward   Run it only inside Autocast, also for evaluation. If the loss itself computes with
//             such weights, for a penalty for example, it gets them in the half type
//   files     save() writes them in the half type. A Trainer's checkpoints have the masters, too
//
// Returns how many tensors were changed. Throws BadInput, and changes nothing, for a type that is
// neither bfloat16 nor float16.
std::size_t hold_weights(torch::nn::Module& module, torch::ScalarType dtype);

// The names of the parameters that hold_weights() would change.
std::vector<std::string> weights_to_hold(const torch::nn::Module& module);

}  // namespace lockstep
