#include "control/rendezvous/listener.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <lockstep/errors.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "control/rendezvous/sockets.h"

namespace lockstep::control {
namespace {

constexpr std::chrono::seconds kTimeToResolve{30};

struct InterfaceAddress {
  std::string interface_name;
  SocketAddress address;
};

// IPv4 and IPv6 addresses of this host, without those that need a scope to be reached.
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
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
    found.push_back({entry->ifa_name, address});
  }
  return found;
}

// IPv4 first: what most clusters route.
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
  parse_address(to_string(address));  // the one place that knows which names are good
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

}  // namespace lockstep::control
