#include "base/fd.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lockstep::base {

void Fd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Unavailable(
        fmt::format("cannot make a pipe: {}; raise `ulimit -n`", std::strerror(errno)));
  }
  return {Fd(ends[0]), Fd(ends[1])};
}

void set_nonblocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

bool wait_ready(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, deadline.left_ms());
    if (ready > 0) return true;
    if (ready == 0 && deadline.expired()) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool write_all(int fd, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    // send() first: on a socket it neither waits nor raises SIGPIPE, which write() may do.
    ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == ENOTSOCK) sent = ::write(fd, bytes.data(), bytes.size());
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_ready(fd, POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::string read_exactly(int fd, std::size_t count, Deadline deadline) {
  std::string bytes(count, '\0');
  std::size_t filled = 0;
  while (filled < count) {
    if (!wait_ready(fd, POLLIN, deadline)) return {};
    const ssize_t got = ::read(fd, bytes.data() + filled, count - filled);
    if (got > 0) {
      filled += static_cast<std::size_t>(got);
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
      return {};
    }
  }
  return bytes;
}

std::string read_file(const std::string& path, std::size_t most) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw BadInput(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  std::string bytes;
  char chunk[4096];
  while (true) {
    const ssize_t got = ::read(file.get(), chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw BadInput(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
    if (got == 0) return bytes;
    bytes.append(chunk, static_cast<std::size_t>(got));
    if (bytes.size() > most) throw BadInput(fmt::format("{} is larger than {} bytes", path, most));
  }
}

}  // namespace lockstep::base
