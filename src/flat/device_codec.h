// Codecs on a device: blocks of float32 are encoded, added up and decoded by kernels, which are queued on a stream.
//
// Every block of threads works on one block of the layout. The bytes are not those of flat/codecs.cpp, though they say the same:
// every block begins at a multiple of 8 bytes, and top-k has its elements before their numbers. What is decoded of finite elements has
// the same bits as on a CPU, but for one-bit: the means are those of sums in another order.
//
// Nothing is allocated, and nothing waits. All pointers are pointers of the device, and their memory must stay valid until the
// stream has done the task. Flat memories begin at multiples of 16 bytes, encoded bytes at multiples of 8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/layout.h"
#include "plan/slices.h"

namespace lockstep::flat {

struct DeviceFormat {
  enum class Kind : std::uint8_t { kBFloat16, kFloat16, kInt8, kTopK, kOneBit };
  Kind kind = Kind::kBFloat16;
  double fraction = 0;  // of top-k

  std::size_t bytes(std::size_t elements) const;  // of an encoded block; a multiple of 8
};

// A codec that devices know, too.
class KnownToDevices {
 public:
  virtual ~KnownToDevices() = default;
  virtual DeviceFormat on_device() const = 0;
};

// How many elements of a block top-k keeps.
std::size_t top_k_of(std::size_t elements, double fraction);

// A block of the layout.
struct CodecBlock {
  std::uint64_t first = 0;  // byte of its first element in flat memory
  std::uint64_t at = 0;     // byte of its encoding, among those of all blocks
  std::uint32_t count = 0;  // elements
  std::uint32_t kept = 0;   // of them, by top-k
};
// Of all blocks. All of them are float32.
std::vector<CodecBlock> codec_blocks(const plan::Layout& layout, const DeviceFormat& format);

// Some neighbouring blocks.
struct CodecRange {
  const CodecBlock* table = nullptr;
  plan::BlockRange blocks;
  std::uint64_t at = 0;  // of the first of them
};

// For each block: s = element · factor + lost; `bytes` has the encoding of s; lost = s − what was decoded.
struct EncodeTask {
  CodecRange range;
  DeviceFormat::Kind kind = DeviceFormat::Kind::kBFloat16;
  const std::byte* from = nullptr;  // flat memory
  float factor = 1;
  std::byte* lost = nullptr;   // flat memory; null: 0, and nothing is kept
  std::byte* bytes = nullptr;  // of the range
};
void queue_encode(const EncodeTask& task, void* stream);

// The same of s = what all shards have sent, added in the order of the tree, + lost.
struct AverageTask {
  CodecRange range;
  DeviceFormat::Kind kind = DeviceFormat::Kind::kBFloat16;
  const std::byte* from = nullptr;  // the bytes of the range of shard 0
  std::uint64_t stride = 0;         // from the bytes of a shard to those of the next
  std::uint32_t shards = 0;
  std::byte* lost = nullptr;
  std::byte* bytes = nullptr;
};
void queue_average(const AverageTask& task, void* stream);

struct DecodeTask {
  CodecRange range;
  DeviceFormat::Kind kind = DeviceFormat::Kind::kBFloat16;
  const std::byte* bytes = nullptr;
  std::byte* to = nullptr;  // flat memory
};
void queue_decode(const DecodeTask& task, void* stream);

}  // namespace lockstep::flat
