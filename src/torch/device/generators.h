// LibTorch's default generators of random numbers. They belong to the process.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

namespace lockstep::device {

// Those that a model draws from: the CPU's, and that of each device.
//
// Threads:   any; a call locks each of them.
// Blocking:  never.
// Failure:   what LibTorch throws for a state of another generator.
// Ownership: they are LibTorch's.
class Generators {
 public:
  Generators() = default;  // none
  explicit Generators(const std::vector<torch::Device>& devices)
      : all_{at::detail::getDefaultCPUGenerator()} {
    for (const torch::Device& device : devices) {
      const at::Generator generator = at::globalContext().defaultGenerator(device);
      if (std::find(all_.begin(), all_.end(), generator) == all_.end()) all_.push_back(generator);
    }
  }

  std::vector<torch::Tensor> states() const {
    std::vector<torch::Tensor> all;
    for (at::Generator generator : all_) {
      const std::lock_guard lock(generator.mutex());
      all.push_back(generator.get_state());
    }
    return all;
  }
  void set(const std::vector<torch::Tensor>& states) const {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      at::Generator generator = all_[i];
      const std::lock_guard lock(generator.mutex());
      generator.set_state(states[i]);
    }
  }

 private:
  std::vector<at::Generator> all_;
};

}  // namespace lockstep::device
