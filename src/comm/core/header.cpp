#include "comm/core/header.h"

#include <fmt/format.h>
#include <lockstep/comm.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/bytes.h"
#include "base/hash.h"
#include "comm/core/device.h"

namespace lockstep {

const char* name(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::kAutomatic:
      return "automatic";
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kHalvingDoubling:
      return "halving-doubling";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kTree:
      return "tree";
    case Algorithm::kNative:
      return "native";
    case Algorithm::kTwoLevels:
      return "two-levels";
  }
  return "?";
}

}  // namespace lockstep

namespace lockstep::comm {
namespace {

constexpr std::uint32_t kMagic = 0x4c4b4844;  // "DHKL"
constexpr std::uint16_t kVersion = 2;

const char* name(Kind kind) {
  switch (kind) {
    case Kind::kMessage:
      return "message";
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kReduce:
      return "reduce";
    case Kind::kReduceScatter:
      return "reduce_scatter";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kAllToAll:
      return "all_to_all";
  }
  return "?";
}

template <typename Enum>
bool in_range(Enum value, Enum first, Enum last) {
  return value >= first && value <= last;
}

constexpr bool printable(char c) {
  return c >= ' ' && c <= '~';
}

// The operation itself, without the call that it is part of.
std::string describe_operation(const Header& header) {
  std::string text = fmt::format("{} #{}", name(header.kind), header.sequence);
  if (header.kind == Kind::kBarrier) return text;
  text += fmt::format(" of {} {}{}", header.count, lockstep::name(header.dtype),
                      text_of_memory(header.device));
  const auto digest = [&](const char* what) {
    return header.detail != 0 ? fmt::format("{} {:08x}", what, header.detail) : std::string();
  };
  switch (header.kind) {
    case Kind::kReduce:
      return text + fmt::format(" over {} shards ({}, {})", header.detail,
                                lockstep::name(header.op), lockstep::name(header.algorithm));
    case Kind::kAllReduce:
      return text + fmt::format(" ({}, {}{})", lockstep::name(header.op),
                                lockstep::name(header.algorithm), digest(", pieces"));
    case Kind::kReduceScatter:
      return text + fmt::format(" ({}{})", lockstep::name(header.op), digest(", counts"));
    case Kind::kAllToAll:
      text += " in all";
      [[fallthrough]];
    case Kind::kAllGather:
      return header.detail != 0 ? text + fmt::format(" ({})", digest("counts")) : text;
    case Kind::kBroadcast:
      return text + fmt::format(" from rank {}", header.detail);
    default:
      return text;
  }
}

}  // namespace

CallText::CallText(std::string_view text) {
  std::string cut;
  if (text.size() > kMost) {
    std::uint64_t digest = text.size();
    for (const char c : text) digest = base::mix64(digest ^ static_cast<unsigned char>(c));
    const std::string end = fmt::format("~{:06x}", digest & 0xffffff);
    cut = std::string(text.substr(0, kMost - end.size())) + end;
    text = cut;
  }
  std::transform(text.begin(), text.end(), bytes_.begin(),
                 [](char c) { return printable(c) ? c : '?'; });
}

std::string_view CallText::text() const {
  return {bytes_.data(),
          static_cast<std::size_t>(std::find(bytes_.begin(), bytes_.end(), '\0') - bytes_.begin())};
}

std::uint64_t CallText::digest() const {
  std::uint64_t mixed = 0;
  for (std::size_t i = 0; i < kMost && bytes_[i] != 0; i += sizeof(mixed)) {
    std::uint64_t part = 0;
    std::memcpy(&part, bytes_.data() + i, std::min(sizeof(part), kMost - i));
    mixed = base::mix64(mixed ^ part);
  }
  return mixed;
}

HeaderBytes encode_header(const Header& header) {
  HeaderBytes bytes{};
  std::size_t at = 0;
  const auto put = [&](std::uint64_t value, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) bytes[at++] = static_cast<char>(value >> (8 * i));
  };
  put(kMagic, 4);
  put(kVersion, 2);
  put(static_cast<std::uint8_t>(header.kind), 1);
  put(static_cast<std::uint8_t>(header.dtype), 1);
  put(static_cast<std::uint8_t>(header.op), 1);
  put(static_cast<std::uint8_t>(header.algorithm), 1);
  put(static_cast<std::uint8_t>(header.device), 1);
  put(0, 1);
  put(header.detail, 4);
  put(header.sequence, 8);
  put(header.count, 8);
  for (const char c : header.call.bytes()) bytes[at++] = c;
  return bytes;
}

std::optional<Header> decode_header(std::span<const char> bytes) {
  base::ByteReader reader(std::string_view(bytes.data(), bytes.size()));
  const auto magic = reader.get<std::uint32_t>();
  const auto version = reader.get<std::uint16_t>();
  Header header;
  header.kind = static_cast<Kind>(reader.get<std::uint8_t>());
  header.dtype = static_cast<DType>(reader.get<std::uint8_t>());
  header.op = static_cast<ReduceOp>(reader.get<std::uint8_t>());
  header.algorithm = static_cast<Algorithm>(reader.get<std::uint8_t>());
  header.device = static_cast<DeviceKind>(reader.get<std::uint8_t>());
  const auto zero = reader.get<std::uint8_t>();
  header.detail = reader.get<std::uint32_t>();
  header.sequence = reader.get<std::uint64_t>();
  header.count = reader.get<std::uint64_t>();
  const std::string_view call = reader.get_raw(CallText::kMost);
  header.call = CallText(call.substr(0, call.find('\0')));
  const bool call_is_whole =
      std::equal(call.begin(), call.end(), header.call.bytes().begin(), header.call.bytes().end());
  const bool known = in_range(header.kind, Kind::kMessage, Kind::kAllToAll) &&
                     in_range(header.dtype, DType::kFloat32, DType::kUInt8) &&
                     in_range(header.op, ReduceOp::kSum, ReduceOp::kMax) &&
                     in_range(header.algorithm, Algorithm::kAutomatic, Algorithm::kTwoLevels) &&
                     in_range(header.device, DeviceKind::kCpu, DeviceKind::kCuda);
  if (!reader.ok() || !call_is_whole || magic != kMagic || version != kVersion || zero != 0 ||
      !known) {
    return std::nullopt;
  }
  return header;
}

std::string describe(const Header& header) {
  if (header.call.empty()) return describe_operation(header);
  return fmt::format("{} ({})", header.call.text(), describe_operation(header));
}

}  // namespace lockstep::comm
