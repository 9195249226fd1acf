// Matrix products and convolutions in a half type, while the weights and their gradients stay float32; or while the
// weights are held in that type, too, beside float32 masters.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep {

struct AutocastOptions {
  bool enabled = true;  // false: off inside, also within another that is on

  // A weight that is used several times is cast once, and its gradients are added up in the half type. Off: cast for each
  // use. A CUDA graph that is replayed after the weights have changed needs that.
  bool cache_weights = true;
};

// LibTorch's autocast of one kind of device, as long as it lives: put it around forward and loss, and end it before
// backward(), which does as forward did.
//
//   torch::Tensor loss;
//   {
//     lockstep::Autocast half(torch::kCUDA, torch::kBFloat16);
//     loss = torch::nll_loss(model->forward(batch.data), batch.target);
//   }
//   loss.backward();
//
// Threads:   for the thread that made it, which ends it, too. One may stand within another; they end in turn.
// Blocking:  never.
// Failure:   BadInput for a device that is neither the CPU nor CUDA, for a type that is neither bfloat16 nor float16, and
//            for one that this LibTorch does not know there.
// Ownership: what was before it is so again after it. The outermost releases the weights that were cast.
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

// Weights and biases of linear layers and convolutions become `dtype`, and stay so: Autocast would cast them in every pass,
// and their gradients back. lockstep::optim keeps float32 masters of half parameters on a GPU, which start from the rounded
// values: load weights before. Call it when the module is on its GPU, before data_parallel().
//
//   bits      From the rounded values on, one shard in full batches trains with those of Autocast and float32 weights:
//             passes read what the masters are rounded to, and gradients come in the half type either way. A mean over
//             several shards, or over a short batch, is rounded to the half type once
//   not held  What is frozen, which has no master; what another kind of module has, too, such as an embedding that is also
//             the output layer; parameters of a layer other than `weight` and `bias`
//   forward   Only within Autocast, in evaluation, too. A loss that computes with such weights itself, as a penalty does,
//             gets them in the half type
//   files     save() writes them in the half type; a Trainer's checkpoints have the masters besides
//
// Returns how many tensors were changed. BadInput for a type that is neither bfloat16 nor float16, and for weights that
// are not on a GPU: nothing is changed then.
std::size_t hold_weights(torch::nn::Module& module, torch::ScalarType dtype);

// The names of those that it would change.
std::vector<std::string> weights_to_hold(const torch::nn::Module& module);

}  // namespace lockstep
