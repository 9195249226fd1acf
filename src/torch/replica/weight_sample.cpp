#include "torch/replica/weight_sample.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/hash.h"

namespace lockstep::replica {
namespace {

constexpr std::size_t kLine = 64;

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

std::uint64_t HostWeightSample::take(std::uint64_t pass) {
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

}  // namespace lockstep::replica
