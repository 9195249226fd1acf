// A few numbers or pointers that kernels read in a GPU's memory, and that the host changes now and then.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <vector>

#include "torch/device/device.h"

namespace lockstep::device {

// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   what LibTorch throws when there is no memory.
// Ownership: of its memory.
class SmallTable {
 public:
  explicit SmallTable(Device device) : device_(device) {}

  // What the current stream reads there from here on; copied only if it has changed.
  void set(const std::vector<std::byte>& bytes);
  template <typename T>
  void set(const std::vector<T>& values) {
    const auto* const first = reinterpret_cast<const std::byte*>(values.data());
    set(std::vector<std::byte>(first, first + values.size() * sizeof(T)));
  }

  const void* data() const { return memory_.data_ptr(); }

 private:
  Device device_;
  std::vector<std::byte> bytes_;
  torch::Tensor memory_;
};

}  // namespace lockstep::device
