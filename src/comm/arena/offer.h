// What a worker puts in the bootstrap before arenas are handed over: where it is, where it listens, which process it is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::comm {

struct ArenaOffer {
  std::string host;         // equal for workers that can reach each other's sockets
  std::string socket_name;  // in the abstract namespace
  std::uint64_t bytes = 0;  // of the arena
  // The worker's process, and the namespace in which that is its number.
  std::int32_t process = 0;
  std::string process_namespace = {};

  bool operator==(const ArenaOffer&) const = default;
};

std::string encode(const ArenaOffer& offer);
std::optional<ArenaOffer> decode_offer(std::string_view bytes);

// The boot of this kernel, and the namespaces without which a socket's name, or a user's number,
// means something else: containers of one machine that share neither are two hosts.
std::string host_identity();

}  // namespace lockstep::comm
