#include "control/rendezvous/sockets.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

#include "base/check.h"

namespace lockstep::control {
namespace {

struct Resolved {
  std::vector<SocketAddress> addresses;
  std::string problem;
};

Resolved resolve_now(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  Resolved resolved;
  if (error != 0) {
    resolved.problem = fmt::format("{} is unknown: {}", host, ::gai_strerror(error));
    return resolved;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    resolved.addresses.push_back(address);
  }
  return resolved;
}

const sockaddr_in& as_v4(const SocketAddress& address) {
  return *reinterpret_cast<const sockaddr_in*>(&address.storage);
}
const sockaddr_in6& as_v6(const SocketAddress& address) {
  return *reinterpret_cast<const sockaddr_in6*>(&address.storage);
}

}  // namespace

SocketAddress abstract_address(const std::string& name) {
  SocketAddress address;
  auto& unix_address = *reinterpret_cast<sockaddr_un*>(&address.storage);
  LOCKSTEP_CHECK(name.size() + 1 <= sizeof unix_address.sun_path,
                 "the name was checked when parsed");
  unix_address.sun_family = AF_UNIX;
  // A first byte of zero makes the name abstract.
  std::memcpy(unix_address.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// getaddrinfo() knows no deadline: it runs on a thread that is left behind when time is up.
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port, Deadline deadline,
                                   std::string& problem) {
  Resolved resolved = resolve_now(host, port, AI_NUMERICHOST);
  if (resolved.addresses.empty()) {
    std::packaged_task<Resolved()> task([host, port] { return resolve_now(host, port, 0); });
    std::future<Resolved> answer = task.get_future();
    std::thread(std::move(task)).detach();
    if (answer.wait_until(deadline.when()) == std::future_status::ready) {
      resolved = answer.get();
    } else {
      resolved.problem = fmt::format("the name service did not answer for {}", host);
    }
  }
  if (resolved.addresses.empty()) problem = resolved.problem;
  return resolved.addresses;
}

std::string numeric_host(const SocketAddress& address) {
  char host[NI_MAXHOST] = "?";
  ::getnameinfo(address.raw(), address.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

std::uint16_t port_of(const SocketAddress& address) {
  return ntohs(address.family() == AF_INET6 ? as_v6(address).sin6_port : as_v4(address).sin_port);
}

void set_port(SocketAddress& address, std::uint16_t port) {
  if (address.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = htons(port);
  }
}

bool is_loopback(const SocketAddress& address) {
  if (address.family() == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&as_v6(address).sin6_addr) != 0;
  return (ntohl(as_v4(address).sin_addr.s_addr) >> 24) == 127;
}

bool is_wildcard(const SocketAddress& address) {
  if (address.family() == AF_INET6) return IN6_IS_ADDR_UNSPECIFIED(&as_v6(address).sin6_addr) != 0;
  return as_v4(address).sin_addr.s_addr == htonl(INADDR_ANY);
}

SocketAddress local_address(int fd) {
  SocketAddress address;
  ::getsockname(fd, address.raw(), &address.length);
  return address;
}

SocketAddress peer_address(int fd) {
  SocketAddress address;
  ::getpeername(fd, address.raw(), &address.length);
  return address;
}

void tune_tcp(int fd) {
  const int on = 1;
  const int idle_s = 10;
  const int interval_s = 5;
  const int probes = 3;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

ucred peer_credentials(int fd) {
  ucred credentials{0, static_cast<uid_t>(-1), static_cast<gid_t>(-1)};
  socklen_t length = sizeof credentials;
  ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length);
  return credentials;
}

}  // namespace lockstep::control
