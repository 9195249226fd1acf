#include "control/rendezvous/loss.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep::control {
namespace {

// The program may have closed the descriptor and opened another file under the same number. We must not write into
// that.
bool is_loss_channel(int fd) {
  const auto option = [fd](int name) {
    int value = -1;
    socklen_t size = sizeof value;
    return ::getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
  };
  return option(SO_DOMAIN) == AF_UNIX && option(SO_TYPE) == SOCK_DGRAM;
}

}  // namespace

std::optional<Loss> loss_of(int rank, ErrorKind kind, const std::vector<int>& ranks) {
  if (kind == ErrorKind::kMismatch || kind == ErrorKind::kBadInput) return std::nullopt;
  if (ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end())
    return std::nullopt;
  return Loss{rank, ranks.front()};
}

LossChannel make_loss_channel() {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Unavailable(
        fmt::format("cannot open a pair of sockets: {}; raise `ulimit -n`", std::strerror(errno)));
  }
  return {base::Fd(ends[0]), base::Fd(ends[1])};
}

LossTeller::LossTeller(std::optional<int> inherited) {
  if (inherited && is_loss_channel(*inherited))
    socket_ = base::Fd(::fcntl(*inherited, F_DUPFD_CLOEXEC, 3));
}

void LossTeller::tell(const Loss& loss) const noexcept {
  if (socket_) ::send(socket_.get(), &loss, sizeof loss, MSG_DONTWAIT | MSG_NOSIGNAL);
}

std::optional<Loss> take_loss(int socket) {
  Loss loss;
  while (true) {
    const ssize_t got = ::recv(socket, &loss, sizeof loss, MSG_DONTWAIT | MSG_TRUNC);
    if (got == static_cast<ssize_t>(sizeof loss)) return loss;
    if (got < 0 && errno != EINTR) return std::nullopt;
  }
}

}  // namespace lockstep::control
