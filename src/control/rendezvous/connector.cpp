#include "control/rendezvous/connector.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "control/rendezvous/sockets.h"

namespace lockstep::control {
namespace {

// A lost first packet should not cost the whole deadline.
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

// A port of this host that nobody listens on can be given to our own end of the connection, which
// then meets itself.
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

base::Fd try_connect(const Address& address, Deadline deadline, std::string& problem) {
  if (address.kind == Address::Kind::kUnix) return try_unix(address.host, deadline, problem);
  return try_tcp(address, deadline, problem);
}

}  // namespace lockstep::control
