#include "comm/tcp/sockets.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <lockstep/errors.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace lockstep::comm {
namespace {

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  int family() const { return bytes.ss_family; }
};

Address copy_of(const sockaddr* from, socklen_t length) {
  Address address;
  std::memcpy(&address.bytes, from, length);
  address.length = length;
  return address;
}

std::vector<Address> resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> freed(found, ::freeaddrinfo);
  std::vector<Address> all;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next)
    all.push_back(copy_of(entry->ai_addr, entry->ai_addrlen));
  return all;
}

// IPv4 first. Link-local addresses of IPv6 mean nothing on another host.
std::vector<Address> addresses_of_interface(const std::string& name) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> freed(found, ::freeifaddrs);
  std::vector<Address> four;
  std::vector<Address> six;
  for (const ifaddrs* entry = found; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || name != entry->ifa_name) continue;
    if (entry->ifa_addr->sa_family == AF_INET)
      four.push_back(copy_of(entry->ifa_addr, sizeof(sockaddr_in)));
    if (entry->ifa_addr->sa_family != AF_INET6) continue;
    const auto* const its = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    if (!IN6_IS_ADDR_LINKLOCAL(&its->sin6_addr))
      six.push_back(copy_of(entry->ifa_addr, sizeof(sockaddr_in6)));
  }
  four.insert(four.end(), six.begin(), six.end());
  return four;
}

std::vector<Address> candidates(const std::string& where) {
  if (where.empty()) return resolve("127.0.0.1", "0", AI_NUMERICHOST);
  if (::if_nametoindex(where.c_str()) != 0) return addresses_of_interface(where);
  return resolve(where, "0", 0);
}

base::Fd new_socket(int family) {
  return base::Fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

TcpAddress address_of(int socket) {
  Address own;
  own.length = sizeof own.bytes;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&own.bytes), &own.length);
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  ::getnameinfo(own.get(), own.length, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
  return {host, std::atoi(port)};
}

}  // namespace

TcpListener listen_on(const std::string& where) {
  std::string problem = "no such interface, address or name";
  bool bound = false;
  for (const Address& address : candidates(where)) {
    base::Fd socket = new_socket(address.family());
    if (!socket) throw Unavailable(fmt::format("no socket: {}", std::strerror(errno)));
    if (::bind(socket.get(), address.get(), address.length) != 0) {
      problem = std::strerror(errno);
      continue;
    }
    bound = true;
    if (::listen(socket.get(), SOMAXCONN) == 0) {
      const TcpAddress own = address_of(socket.get());
      return {std::move(socket), own};
    }
    problem = std::strerror(errno);
  }
  if (bound) throw Unavailable(fmt::format("cannot listen on '{}': {}", where, problem));
  throw BadInput(fmt::format(
      "cannot listen on '{}' ({}); name an interface or an address of this host", where, problem));
}

base::Fd accept_next(const TcpListener& listener) {
  base::Fd socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) set_up(socket.get());
  return socket;
}

base::Fd begin_to_connect(const TcpAddress& address) {
  for (const Address& to :
       resolve(address.host, std::to_string(address.port), AI_NUMERICHOST | AI_NUMERICSERV)) {
    base::Fd socket = new_socket(to.family());
    if (!socket) continue;
    set_up(socket.get());
    if (::connect(socket.get(), to.get(), to.length) == 0 || errno == EINPROGRESS) return socket;
  }
  return {};
}

bool connected(int socket) {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

void set_up(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace lockstep::comm
