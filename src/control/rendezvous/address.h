// Where a rendezvous is: an abstract Unix socket of this host, or a TCP port of some host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::control {

struct Address {
  enum class Kind : std::uint8_t { kUnix, kTcp };

  Kind kind = Kind::kUnix;
  std::string host;        // the abstract socket's name, or a host name or number
  std::uint16_t port = 0;  // TCP only

  bool operator==(const Address&) const = default;
};

// Reads "unix:NAME", "tcp:HOST:PORT" or "HOST:PORT"; an IPv6 address stands in brackets:
// "[::1]:29400". BadInput says what is wrong with it and what an address looks like.
Address parse_address(std::string_view text);

// "unix:NAME" or "tcp:HOST:PORT"; parse_address() reads it back.
std::string to_string(const Address& address);

}  // namespace lockstep::control
