#include "comm/tcp/tcp_frame.h"

#include <string_view>

#include "base/bytes.h"
#include "comm/core/failure.h"

namespace lockstep::comm {
namespace {

constexpr std::uint32_t kFrameMark =
    0x6b636f4c;  // "Lock", so that other bytes are no header by chance

bool fits(const TcpFrame& frame) {
  switch (frame.kind) {
    case TcpFrame::Kind::kMessage:
      return frame.bytes <= kTcpShortBytesBetweenHosts && frame.total == frame.bytes;
    case TcpFrame::Kind::kData:
      return frame.bytes <= kMostData && frame.bytes <= frame.total;
    case TcpFrame::Kind::kNotice:
      return frame.bytes == kNoticeBytes;
    case TcpFrame::Kind::kAsk:
    case TcpFrame::Kind::kGrant:
    case TcpFrame::Kind::kReceipt:
    case TcpFrame::Kind::kBeat:
      return frame.bytes == 0;
  }
  return false;
}

}  // namespace

// Without memory of its own: a worker that has none left must still be able to say so.
TcpHeader encode(const TcpFrame& frame) {
  TcpHeader header;
  std::byte* at = header.data();
  const auto put = [&](auto value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
      *at++ = static_cast<std::byte>(value >> (8 * i) & 0xff);
  };
  put(kFrameMark ^ static_cast<std::uint32_t>(frame.kind));
  put(frame.bytes);
  put(frame.slot);
  put(frame.number);
  put(frame.total);
  return header;
}

std::optional<TcpFrame> decode_tcp_header(std::span<const std::byte, kTcpHeaderBytes> bytes) {
  base::ByteReader reader({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const std::uint32_t kind = reader.get<std::uint32_t>() ^ kFrameMark;
  if (kind < 1 || kind > static_cast<std::uint32_t>(TcpFrame::Kind::kBeat)) return std::nullopt;
  TcpFrame frame;
  frame.kind = static_cast<TcpFrame::Kind>(kind);
  frame.bytes = reader.get<std::uint32_t>();
  frame.slot = reader.get<std::uint64_t>();
  frame.number = reader.get<std::uint64_t>();
  frame.total = reader.get<std::uint64_t>();
  return fits(frame) ? std::optional(frame) : std::nullopt;
}

}  // namespace lockstep::comm
