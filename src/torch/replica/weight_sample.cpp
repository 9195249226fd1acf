#include "torch/replica/weight_sample.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/hash.h"

namespace lockstep::replica {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kWordsOfEach = 16;

std::uint64_t digest_of_line(const void* values, std::size_t bytes, std::uint64_t choice) {
  const std::size_t lines = (bytes + kLine - 1) / kLine;
  const std::size_t first = choice % lines * kLine;
  std::array<std::uint64_t, kLine / 8> line{};
  std::memcpy(line.data(), static_cast<const std::byte*>(values) + first,
              std::min(kLine, bytes - first));
  std::uint64_t digest = 0;
  for (const std::uint64_t word : line) digest = base::mix64(digest ^ word);
  return digest;
}

// By 32 bits of the flat memory: some of each entry, the same on every worker.
torch::Tensor positions_of(const plan::Layout& layout) {
  std::vector<std::int64_t> positions;
  std::uint64_t choice = 1;
  for (const plan::Entry& entry : layout.entries()) {
    const std::size_t words = entry.bytes() / 4;
    for (std::size_t i = 0; i < std::min(words, kWordsOfEach); ++i) {
      choice = base::mix64(choice);
      positions.push_back(static_cast<std::int64_t>(entry.offset / 4 + choice % words));
    }
  }
  return torch::tensor(positions, torch::kInt64);
}

}  // namespace

std::uint64_t sample_lines(const FlatMemory& memory, const plan::Layout& layout,
                           std::uint64_t choice) {
  std::uint64_t digest = 1;
  for (const plan::Entry& entry : layout.entries()) {
    choice = base::mix64(choice);
    if (entry.count == 0) continue;
    digest =
        base::mix64(digest ^ digest_of_line(memory.data() + entry.offset, entry.bytes(), choice));
  }
  return digest;
}

WeightSample::WeightSample(std::vector<NamedTensor> parameters, const plan::Layout& layout,
                           const FlatMemory& memory, std::chrono::milliseconds timeout)
    : parameters_(std::move(parameters)), device_(memory.device()), timeout_(timeout) {
  if (device_.kind == DeviceKind::kCpu) return;
  words_ = memory.as_tensor(torch::kInt32, 0, memory.bytes() / 4);
  positions_ = positions_of(layout).to(torch::Device(device_));
  on_host_ = torch::empty({positions_.numel()},
                          torch::TensorOptions().dtype(torch::kInt32).pinned_memory(true));
}

std::uint64_t WeightSample::take(std::uint64_t pass) {
  if (device_.kind != DeviceKind::kCpu) return take_on_device();
  std::uint64_t digest = 1;
  std::uint64_t choice = base::mix64(pass);
  for (const auto& [name, tensor] : parameters_) {
    choice = base::mix64(choice);
    if (tensor.numel() == 0 || tensor.layout() != torch::kStrided ||
        !tensor.is_non_overlapping_and_dense())
      continue;
    digest = base::mix64(digest ^ digest_of_line(tensor.data_ptr(), tensor.nbytes(), choice));
  }
  return digest | 1;
}

std::uint64_t WeightSample::take_on_device() {
  std::uint64_t digest = 1;
  if (copied_) {
    copied_->wait(Deadline::after(timeout_));
    const auto* const words = static_cast<const std::uint32_t*>(on_host_.data_ptr());
    for (std::int64_t i = 0; i < on_host_.numel(); ++i) digest = base::mix64(digest ^ words[i]);
  } else {
    copied_.emplace();
  }
  torch::NoGradGuard no_grad;
  on_host_.copy_(words_.index_select(0, positions_), /*non_blocking=*/true);
  copied_->record(device::current_stream(device_));
  return digest | 1;
}

}  // namespace lockstep::replica
