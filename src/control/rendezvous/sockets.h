// Sockets of this host: addresses as the kernel takes them, listening, and one attempt to connect.
#pragma once

#include <lockstep/deadline.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "control/rendezvous/address.h"

namespace lockstep::control {

// An address of any family, in the form that system calls take.
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

SocketAddress local_address(int fd);
SocketAddress peer_address(int fd);

// Small messages leave at once, and the death of a peer's host is noticed within half a minute.
void tune_tcp(int fd);

// The user and process at the other end of a Unix socket, as the kernel knows them.
ucred peer_credentials(int fd);

// A socket that is bound and listens. The kernel queues connections until a RendezvousServer takes the socket. So a
// launcher can bind, start its workers, and serve them afterwards. The descriptor closes on exec.
struct Listener {
  base::Fd fd;
  Address address;  // with the port that the kernel chose, where 0 was asked for
};

// An abstract socket: no file, gone with the last descriptor. BadInput when the name is taken.
Listener listen_unix(const std::string& name);

// TCP on one address: that of a named interface ("eth0"), or what the host name or number stands
// for. Never on all of them: 0.0.0.0 is BadInput, and so are an unknown interface, an address of
// another host and a port that is taken. Port 0 lets the kernel choose.
Listener listen_tcp(const std::string& interface_or_host, std::uint16_t port);

// One of these ports, at random, on which nobody listens on the loopback of this host, if some tries find one.
int random_port(int first, int last);

// A connected, non-blocking socket; or none, and the `problem` as a phrase. On a Unix socket it
// makes sure that the other end is our own user: anybody may take an abstract name.
base::Fd try_connect(const Address& address, Deadline deadline, std::string& problem);

}  // namespace lockstep::control
