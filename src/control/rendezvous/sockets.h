// Addresses as the kernel takes them.
#pragma once

#include <lockstep/deadline.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::control {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);

  int family() const { return storage.ss_family; }
  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// The abstract socket of this name.
SocketAddress abstract_address(const std::string& name);

// The addresses of a host name or number; none, and a `problem`, when it has none by the deadline.
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port, Deadline deadline,
                                   std::string& problem);

std::string numeric_host(const SocketAddress& address);
std::uint16_t port_of(const SocketAddress& address);
void set_port(SocketAddress& address, std::uint16_t port);
bool is_loopback(const SocketAddress& address);
bool is_wildcard(const SocketAddress& address);

SocketAddress local_address(int fd);
SocketAddress peer_address(int fd);

// Small messages leave at once, and a peer whose host has died is noticed within half a minute.
void tune_tcp(int fd);

// The user and process at the other end of a Unix socket, as the kernel knows them.
ucred peer_credentials(int fd);

}  // namespace lockstep::control
