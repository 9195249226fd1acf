#include "torch/device/small_table.h"

#include <cstring>

namespace lockstep::device {

// From pinned memory that LibTorch takes back when the copy is done: the next one may be written while it is under way.
void SmallTable::set(const std::vector<std::byte>& bytes) {
  if (memory_.defined() && bytes == bytes_) return;
  const auto size = static_cast<std::int64_t>(bytes.size());
  const auto options = torch::TensorOptions().dtype(torch::kUInt8);
  if (!memory_.defined() || memory_.numel() != size)
    memory_ = torch::empty({size}, options.device(torch::Device(device_)));
  const torch::Tensor staging = torch::empty({size}, options.pinned_memory(true));
  std::memcpy(staging.data_ptr(), bytes.data(), bytes.size());
  memory_.copy_(staging, /*non_blocking=*/true);
  bytes_ = bytes;
}

}  // namespace lockstep::device
