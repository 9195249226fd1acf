#include "control/rendezvous/sockets.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <lockstep/errors.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

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

// getaddrinfo() knows no deadline, so it runs on a thread, which is left behind when time is up. A number needs no name
// service and no thread.
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

// Listening.
namespace {

constexpr std::chrono::seconds kTimeToResolve{30};

struct InterfaceAddress {
  std::string interface_name;
  SocketAddress address;
};

// IPv4 and IPv6 addresses of this host, without link-local ones: those need a scope to be reached.
std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address;
    address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, entry->ifa_addr, address.length);
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&as_v6(address).sin6_addr)) continue;
    found.push_back({entry->ifa_name, address});
  }
  return found;
}

// IPv4 before IPv6, because most clusters route it.
std::optional<SocketAddress> address_of_interface(const std::string& name) {
  std::optional<SocketAddress> best;
  for (const InterfaceAddress& entry : interface_addresses()) {
    if (entry.interface_name != name) continue;
    if (!best || (best->family() == AF_INET6 && entry.address.family() == AF_INET)) {
      best = entry.address;
    }
  }
  return best;
}

std::string interfaces_text() {
  std::string text;
  for (const InterfaceAddress& entry : interface_addresses()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", entry.interface_name,
                        numeric_host(entry.address));
  }
  return text.empty() ? "none" : text;
}

void set_port(SocketAddress& address, std::uint16_t port) {
  if (address.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = htons(port);
  }
}

bool is_wildcard(const SocketAddress& address) {
  if (address.family() == AF_INET6) return IN6_IS_ADDR_UNSPECIFIED(&as_v6(address).sin6_addr) != 0;
  return as_v4(address).sin_addr.s_addr == htonl(INADDR_ANY);
}

SocketAddress address_to_bind(const std::string& interface_or_host, std::uint16_t port) {
  if (auto address = address_of_interface(interface_or_host)) {
    set_port(*address, port);
    return *address;
  }
  std::string problem;
  const auto addresses = resolve(interface_or_host, port, Deadline::after(kTimeToResolve), problem);
  if (addresses.empty()) {
    throw BadInput(
        fmt::format("cannot listen on \"{}\": it is no interface of this host, and as a host {}; "
                    "this host has {}",
                    interface_or_host, problem, interfaces_text()));
  }
  if (is_wildcard(addresses[0])) {
    throw BadInput(
        fmt::format("cannot listen on {}: that is every interface; name one (this host has {})",
                    interface_or_host, interfaces_text()));
  }
  return addresses[0];
}

base::Fd open_socket(int family) {
  base::Fd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    throw Unavailable(fmt::format("cannot open a socket: {}; raise `ulimit -n` if it is the limit",
                                  std::strerror(errno)));
  }
  return fd;
}

}  // namespace

Listener listen_unix(const std::string& name) {
  Address address{Address::Kind::kUnix, name, 0};
  parse_address(to_string(address));  // throws for a bad name: it alone knows which names are good
  base::Fd fd = open_socket(AF_UNIX);
  const SocketAddress where = abstract_address(name);
  if (::bind(fd.get(), where.raw(), where.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    throw BadInput(fmt::format(
        "cannot listen on {}: {}; another job uses this name: choose another, or end that job",
        to_string(address), std::strerror(errno)));
  }
  return {std::move(fd), std::move(address)};
}

Listener listen_tcp(const std::string& interface_or_host, std::uint16_t port) {
  const SocketAddress where = address_to_bind(interface_or_host, port);
  base::Fd fd = open_socket(where.family());
  // A port whose last connections are still in TIME_WAIT is free; one that is listened on is not.
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), where.raw(), where.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    const char* hint = error == EADDRINUSE ? "choose another port, or end what uses it"
                       : error == EACCES   ? "choose a port above 1023"
                                           : "name an interface or address of the host of rank 0";
    throw BadInput(fmt::format("cannot listen on {} port {}: {}; {} (this host has {})",
                               interface_or_host, port, std::strerror(error), hint,
                               interfaces_text()));
  }
  const SocketAddress bound = local_address(fd.get());
  return {std::move(fd), {Address::Kind::kTcp, numeric_host(bound), port_of(bound)}};
}

// Connecting.
namespace {

// So that an address that does not answer leaves time for the next one.
constexpr std::chrono::seconds kMostForOneAddress{5};

// 0, or the errno of the failure.
int connect_by(int fd, const SocketAddress& where, Deadline deadline) {
  if (::connect(fd, where.raw(), where.length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!base::wait_ready(fd, POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

base::Fd try_address(const SocketAddress& where, Deadline deadline, std::string& problem) {
  base::Fd fd(::socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int error = fd ? connect_by(fd.get(), where, deadline) : errno;
  if (error != 0) {
    problem = error == ECONNREFUSED ? "nobody listens there" : std::strerror(error);
    return {};
  }
  return fd;
}

base::Fd try_unix(const std::string& name, Deadline deadline, std::string& problem) {
  base::Fd fd = try_address(abstract_address(name), deadline, problem);
  if (!fd) return fd;
  const ucred owner = peer_credentials(fd.get());
  if (owner.uid == ::geteuid()) return fd;
  problem = fmt::format("user {} (pid {}) has taken that name", owner.uid, owner.pid);
  return {};
}

// If nobody listens on a port of this host, the kernel may choose that port for our own end. Then the
// socket connects to itself.
bool connected_to_itself(int fd) {
  const SocketAddress here = local_address(fd);
  const SocketAddress there = peer_address(fd);
  return port_of(here) == port_of(there) && numeric_host(here) == numeric_host(there);
}

base::Fd try_tcp(const Address& address, Deadline deadline, std::string& problem) {
  for (const SocketAddress& where : resolve(address.host, address.port, deadline, problem)) {
    const Deadline soon = earlier(deadline, Deadline::after(kMostForOneAddress));
    base::Fd fd = try_address(where, soon, problem);
    if (!fd) continue;
    if (!connected_to_itself(fd.get())) {
      tune_tcp(fd.get());
      return fd;
    }
    problem = "nobody listens there";
  }
  return {};
}

}  // namespace

int random_port(int first, int last) {
  constexpr int kTries = 8;
  std::random_device random;
  std::uniform_int_distribution ports(first, last);
  for (int i = 1;; ++i) {
    const int port = ports(random);
    try {
      listen_tcp("127.0.0.1", static_cast<std::uint16_t>(port));
      return port;
    } catch (const Error&) {  // taken; or this host has no such address
      if (i == kTries) return port;
    }
  }
}

base::Fd try_connect(const Address& address, Deadline deadline, std::string& problem) {
  if (address.kind == Address::Kind::kUnix) return try_unix(address.host, deadline, problem);
  return try_tcp(address, deadline, problem);
}

}  // namespace lockstep::control
