#include "flat/device_codec.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace lockstep::flat {

std::size_t top_k_of(std::size_t elements, double fraction) {
  const auto some = static_cast<std::size_t>(std::lround(static_cast<double>(elements) * fraction));
  return std::min(elements, std::max<std::size_t>(some, 1));
}

std::size_t DeviceFormat::bytes(std::size_t elements) const {
  constexpr std::size_t kAlignment = 8;
  const auto exact = [&]() -> std::size_t {
    switch (kind) {
      case Kind::kBFloat16:
      case Kind::kFloat16:
        return 2 * elements;
      case Kind::kInt8:
        return sizeof(float) + elements;
      case Kind::kTopK:
        return top_k_of(elements, fraction) * (sizeof(float) + sizeof(std::uint16_t));
      case Kind::kOneBit:
        return 2 * sizeof(float) + (elements + 7) / 8;
    }
    return 0;
  };
  return (exact() + kAlignment - 1) / kAlignment * kAlignment;
}

std::vector<CodecBlock> codec_blocks(const plan::Layout& layout, const DeviceFormat& format) {
  std::vector<CodecBlock> blocks;
  blocks.reserve(layout.blocks());
  std::uint64_t at = 0;
  for (const plan::Entry& entry : layout.entries()) {
    LOCKSTEP_CHECK(entry.dtype == DType::kFloat32, "codecs are for float32");
    for (std::size_t first = 0; first < entry.count; first += plan::kBlockElements) {
      const std::size_t count = std::min(plan::kBlockElements, entry.count - first);
      const std::size_t kept =
          format.kind == DeviceFormat::Kind::kTopK ? top_k_of(count, format.fraction) : 0;
      blocks.push_back({entry.offset + first * sizeof(float), at, static_cast<std::uint32_t>(count),
                        static_cast<std::uint32_t>(kept)});
      at += format.bytes(count);
    }
  }
  return blocks;
}

}  // namespace lockstep::flat
