#include "comm/arena/offer.h"

#include <lockstep/errors.h>

#include "base/bytes.h"
#include "base/fd.h"
#include "base/files.h"

namespace lockstep::comm {
namespace {

constexpr std::uint16_t kOfferVersion = 2;
constexpr std::size_t kMostHostBytes = 256;
constexpr std::size_t kMostNameBytes = 100;  // a socket's name has 107
constexpr std::uint64_t kMostArenaBytes = std::uint64_t{1} << 62;

std::string namespace_of_this_process(const char* kind) {
  return base::link_target(std::string("/proc/self/ns/") + kind);
}

}  // namespace

std::string encode(const ArenaOffer& offer) {
  return base::ByteWriter()
      .put(kOfferVersion)
      .put_text(offer.host)
      .put_text(offer.socket_name)
      .put(offer.bytes)
      .put(offer.process)
      .put_text(offer.process_namespace)
      .take();
}

std::optional<ArenaOffer> decode_offer(std::string_view bytes) {
  base::ByteReader reader(bytes);
  const auto version = reader.get<std::uint16_t>();
  ArenaOffer offer;
  offer.host = reader.get_text(kMostHostBytes);
  offer.socket_name = reader.get_text(kMostNameBytes);
  offer.bytes = reader.get<std::uint64_t>();
  offer.process = reader.get<std::int32_t>();
  offer.process_namespace = reader.get_text(kMostHostBytes);
  if (!reader.done() || version != kOfferVersion) return std::nullopt;
  if (offer.socket_name.empty() || offer.bytes == 0 || offer.bytes > kMostArenaBytes) {
    return std::nullopt;
  }
  return offer;
}

std::string host_identity() {
  std::string boot = base::read_file("/proc/sys/kernel/random/boot_id", kMostHostBytes / 2);
  while (!boot.empty() && boot.back() == '\n') boot.pop_back();
  return boot + " " + namespace_of_this_process("net") + " " + namespace_of_this_process("user");
}

std::string host_name(const std::string& given) {
  if (given.empty()) return host_identity();
  if (given.size() > kMostHostBytes / 2)
    throw BadInput("the name of a host has at most 128 characters");
  return "named " + given;
}

}  // namespace lockstep::comm
