#include "comm/arena/card.h"

#include <lockstep/errors.h>

#include "base/bytes.h"
#include "base/fd.h"
#include "base/files.h"

namespace lockstep::comm {
namespace {

constexpr std::uint16_t kCardVersion = 2;
constexpr std::size_t kMostHostBytes = 256;
constexpr std::size_t kMostNameBytes = 100;  // a socket's name has 107
constexpr std::uint64_t kMostArenaBytes = std::uint64_t{1} << 62;

std::string namespace_of_this_process(const char* kind) {
  return base::link_target(std::string("/proc/self/ns/") + kind);
}

}  // namespace

std::string encode(const Card& card) {
  return base::ByteWriter()
      .put(kCardVersion)
      .put_text(card.host)
      .put_text(card.socket_name)
      .put(card.bytes)
      .put(card.process)
      .put_text(card.process_namespace)
      .take();
}

std::optional<Card> decode_card(std::string_view bytes) {
  base::ByteReader reader(bytes);
  const auto version = reader.get<std::uint16_t>();
  Card card;
  card.host = reader.get_text(kMostHostBytes);
  card.socket_name = reader.get_text(kMostNameBytes);
  card.bytes = reader.get<std::uint64_t>();
  card.process = reader.get<std::int32_t>();
  card.process_namespace = reader.get_text(kMostHostBytes);
  if (!reader.done() || version != kCardVersion) return std::nullopt;
  if (card.socket_name.empty() || card.bytes == 0 || card.bytes > kMostArenaBytes) {
    return std::nullopt;
  }
  return card;
}

std::string host_identity() {
  std::string boot = base::read_file("/proc/sys/kernel/random/boot_id", kMostHostBytes / 2);
  while (!boot.empty() && boot.back() == '\n') boot.pop_back();
  return boot + " " + namespace_of_this_process("net") + " " + namespace_of_this_process("user");
}

}  // namespace lockstep::comm
