// What travels on a connection between two workers, after the proof of the secret: frames. A frame
// is a header and its bytes. On a tagged wire a tag follows each of the two, so that nothing is
// used before it is known to be genuine, not even a length. Kinds as in core/posts.h, and
//
//   kNotice    why the sender ends (core/failure.h)
//   kReceipt   the answer to kNotice: it has arrived, and so has everything that was sent before
//   kBeat      nothing but a sign of life
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace lockstep::comm {

struct TcpFrame {
  enum class Kind : std::uint8_t {
    kMessage = 1,
    kAsk = 2,
    kGrant = 3,
    kData = 4,
    kNotice = 5,
    kReceipt = 6,
    kBeat = 7,
  };
  Kind kind = Kind::kBeat;
  std::uint32_t bytes = 0;  // that follow in this frame
  std::uint64_t slot = 0;
  std::uint64_t number = 0;  // of the message; its sender counts
  std::uint64_t total = 0;   // bytes of the whole message

  bool operator==(const TcpFrame&) const = default;
};

inline constexpr std::size_t kTcpHeaderBytes = 32;
using TcpHeader = std::array<std::byte, kTcpHeaderBytes>;

// The most bytes of a kData frame: they stay in a cache between tag and copy, and few are copied if
// a send is withdrawn in the middle.
inline constexpr std::size_t kMostData = std::size_t{256} << 10;

// The most bytes of a kMessage frame; a longer message asks first, which costs a round trip. Between
// hosts that takes longer than copying a message that has come too early.
inline constexpr std::size_t kTcpShortBytes = std::size_t{64} << 10;
inline constexpr std::size_t kTcpShortBytesBetweenHosts = std::size_t{1} << 20;

TcpHeader encode(const TcpFrame& frame);
// Nothing if these bytes are no header, or its numbers contradict each other.
std::optional<TcpFrame> decode_tcp_header(std::span<const std::byte, kTcpHeaderBytes> bytes);

}  // namespace lockstep::comm
