#include "comm/core/failure.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/diagnosis.h"

namespace lockstep::comm {
namespace {

constexpr std::uint32_t kNoticeMagic = 0x4c4b4e54;  // "TNKL"
constexpr std::size_t kMostRanks = 32;
constexpr std::size_t kMostText = kNoticeBytes - 16 - 4 * kMostRanks;

}  // namespace

Failure failure_from(const Error& error) {
  return {error.kind(), error.ranks(), error.what()};
}

Failure failure_of(int rank, const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool of_others =
      known != nullptr && (known->kind() != ErrorKind::kUnavailable || !known->ranks().empty());
  if (of_others) return failure_from(*known);
  return {
      ErrorKind::kUnavailable, {rank}, fmt::format("rank {}: {}", rank, base::diagnosis(error))};
}

const char* silence_hint(bool over_network) noexcept {
  return over_network
             ? "is it stopped, slow, or in other code, or is the network between the hosts cut?"
             : "is it stopped, slow, or in other code?";
}

Failure waiting_failure(int rank, int peer, bool over_network) {
  return {ErrorKind::kTimeout,
          {peer},
          fmt::format("rank {} waits for rank {}; {}", rank, peer, silence_hint(over_network))};
}

void raise(const Failure& failure) {
  lockstep::raise(failure.kind, failure.text, failure.ranks);
}

std::string encode_notice(const Failure& failure) {
  const std::size_t ranks = std::min(failure.ranks.size(), kMostRanks);
  base::ByteWriter writer;
  writer.put(kNoticeMagic).put(static_cast<std::uint8_t>(failure.kind));
  writer.put(static_cast<std::uint8_t>(ranks));
  for (std::size_t i = 0; i < ranks; ++i) writer.put(static_cast<std::int32_t>(failure.ranks[i]));
  writer.put_text(std::string_view(failure.text).substr(0, kMostText));
  std::string bytes = writer.take();
  bytes.resize(kNoticeBytes, '\0');
  return bytes;
}

std::optional<Failure> decode_notice(std::string_view bytes) {
  base::ByteReader reader(bytes);
  if (reader.get<std::uint32_t>() != kNoticeMagic) return std::nullopt;
  const auto kind = reader.get<std::uint8_t>();
  const auto ranks = reader.get<std::uint8_t>();
  if (kind < 1 || kind > 5 || ranks > kMostRanks) return std::nullopt;
  Failure failure;
  failure.kind = static_cast<ErrorKind>(kind);
  for (int i = 0; i < ranks; ++i) failure.ranks.push_back(reader.get<std::int32_t>());
  failure.text = std::string(reader.get_text(kMostText));
  if (!reader.ok()) return std::nullopt;
  return failure;
}

}  // namespace lockstep::comm
