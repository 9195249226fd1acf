// What a worker puts in the bootstrap before arenas are handed over: its host, its socket, its
// process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::comm {

struct ArenaOffer {
  std::string host;         // equal if workers can reach each other's sockets
  std::string socket_name;  // in the abstract namespace
  std::uint64_t bytes = 0;  // of the arena
  // The number of the worker's process, and the namespace in which it has this number.
  std::int32_t process = 0;
  std::string process_namespace = {};

  bool operator==(const ArenaOffer&) const = default;
};

std::string encode(const ArenaOffer& offer);
std::optional<ArenaOffer> decode_offer(std::string_view bytes);

// Names this host: the boot of its kernel, its network namespace and its user namespace. In another
// network namespace the name of a socket means another socket. In another user namespace the number
// of a user means another user. So containers that do not share both are two hosts.
std::string host_identity();

// The host of a worker that was given this name for it; without one, host_identity(). BadInput if
// the name is too long.
std::string host_name(const std::string& given);

}  // namespace lockstep::comm
