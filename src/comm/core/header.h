// What an operation is, in 64 bytes. Workers compare their headers before they use any payload. So
// two workers that disagree find out, and nothing wrong is added and no memory is overrun.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/comm.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace lockstep::comm {

enum class Kind : std::uint8_t {
  kMessage = 1,
  kAllReduce = 2,
  kReduce = 3,
  kReduceScatter = 4,
  kAllGather = 5,
  kBroadcast = 6,
  kBarrier = 7,
  kAllToAll = 8,
};

// The call of the program that an operation is part of, such as "optimizer.step()". Empty if the
// program itself called the operation. A longer text is cut and ends in a digest of the whole text.
// Characters that are not printable ASCII become '?'.
class CallText {
 public:
  static constexpr std::size_t kMost = 28;

  CallText() = default;
  explicit CallText(std::string_view text);

  std::string_view text() const;
  std::uint64_t digest() const;  // 0 for an empty text
  bool empty() const { return bytes_[0] == 0; }
  const std::array<char, kMost>& bytes() const { return bytes_; }
  bool operator==(const CallText&) const = default;

 private:
  std::array<char, kMost> bytes_{};  // zero from the end of the text on
};

struct Header {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  Algorithm algorithm = Algorithm::kAutomatic;
  DeviceKind device = DeviceKind::kCpu;  // whose memory
  std::uint32_t detail = 0;    // the root, the number of shards, or a digest of the counts
  std::uint64_t sequence = 0;  // the number of the operation in its channel, from 0
  std::uint64_t count = 0;     // elements; of an all-to-all: those of all workers together
  CallText call;

  bool operator==(const Header&) const = default;
};

inline constexpr std::size_t kHeaderBytes = 64;
using HeaderBytes = std::array<char, kHeaderBytes>;

HeaderBytes encode_header(const Header& header);

// Nothing if the bytes are not a header of this version.
std::optional<Header> decode_header(std::span<const char> bytes);

// "all_reduce #5 of 1024 float32 (sum, direct)", or "optimizer.step() (all_gather #23 of 6 int64)"
std::string describe(const Header& header);

// A header with the kind of a collective and the type and count of its data.
inline Header header_of(Kind kind, const Buffer& data) {
  Header header;
  header.kind = kind;
  header.dtype = data.dtype;
  header.count = data.count;
  return header;
}

// The counts of a cut as one number, so that workers with different cuts find out.
inline std::uint32_t digest(const std::vector<std::size_t>& counts) {
  std::uint64_t mixed = counts.size();
  for (const std::size_t count : counts) mixed = base::mix64(mixed ^ count);
  return static_cast<std::uint32_t>(mixed);
}

}  // namespace lockstep::comm
