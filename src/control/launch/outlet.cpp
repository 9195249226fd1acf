#include "control/launch/outlet.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace lockstep::control {
namespace {

constexpr std::size_t kFullBytes = std::size_t{1} << 20;
constexpr std::size_t kPieceBytes = 4096;  // a pipe that is ready has room for this much
constexpr std::chrono::milliseconds kRetryInterval{20};

bool may_not_be_ready(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return false;
  return S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) || ::isatty(fd) == 1;
}

// Whether both are the same terminal. Opening /dev/tty or a terminal's master again may give another
// one, and only this number tells.
bool same_terminal(int first, int second) {
  unsigned int devices[2] = {};
  return ::ioctl(first, TIOCGDEV, &devices[0]) == 0 &&
         ::ioctl(second, TIOCGDEV, &devices[1]) == 0 && devices[0] == devices[1];
}

// A description of our own of the pipe or terminal behind `fd`, so that it can be non-blocking; none
// where that is refused: a socket, a terminal of another user, no /proc.
base::Fd open_again(int fd) {
  base::Fd own(::open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                      O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (own && ::isatty(fd) == 1 && !same_terminal(fd, own.get())) own.reset();
  return own;
}

// An epoll descriptor that is readable when `fd` is writable. Asio makes what it watches
// non-blocking: this way that is a descriptor of our own.
int watch_writable(int fd) {
  const int watcher = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLOUT;
  if (watcher < 0 || ::epoll_ctl(watcher, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw Unavailable("cannot watch standard output; raise `ulimit -n`");
  }
  return watcher;
}

}  // namespace

Destination::Destination(int given)
    : waits(may_not_be_ready(given)),
      own(waits ? open_again(given) : base::Fd()),
      fd(own ? own.get() : given) {}

bool Destination::ready() const {
  if (!waits) return true;
  pollfd entry{fd, POLLOUT, 0};
  return ::poll(&entry, 1, 0) > 0;
}

void ByteQueue::take(std::size_t count) {
  taken_ += count;
  if (taken_ < bytes_.size() && taken_ < kFullBytes) return;
  bytes_.erase(0, taken_);
  taken_ = 0;
}

Outlet::Outlet(boost::asio::io_context& context, int fd)
    : to_(fd), readiness_(context), retry_(context) {
  if (to_.waits) readiness_.assign(watch_writable(to_.fd));
}

void Outlet::add(std::string_view bytes) {
  if (closed()) {
    dropped_ += bytes.size();
  } else {
    queue_.add(bytes);
  }
}

bool Outlet::full() const {
  return !closed() && waiting() >= kFullBytes;
}

void Outlet::flush() {
  was_full_ = was_full_ || full();
  while (!closed() && !empty()) {
    if (!to_.ready() || !write_piece()) break;
  }
  if (closed()) {
    dropped_ += waiting();
    queue_.take(waiting());
  }
  if (!empty()) wait_until_ready();
  if (was_full_ && waiting() < kFullBytes / 2) {
    was_full_ = false;
    if (when_drained) when_drained();
  }
}

// False when the rest has to wait.
bool Outlet::write_piece() {
  const std::size_t most = to_.waits ? std::min(waiting(), kPieceBytes) : waiting();
  const ssize_t sent = ::write(to_.fd, queue_.waiting().data(), most);
  if (sent >= 0) {
    queue_.take(static_cast<std::size_t>(sent));
    written_ += static_cast<std::uint64_t>(sent);
    return true;
  }
  if (errno == EINTR) return true;
  refused_ = errno == EAGAIN && to_.waits;
  if (!refused_) close(errno);
  return false;
}

void Outlet::wait_until_ready() {
  if (waiting_ || !to_.waits) return;
  waiting_ = true;
  auto go_on = [this](const boost::system::error_code& error) {
    waiting_ = false;
    if (!error) flush();
  };
  // A terminal may call itself ready with less room than its next byte needs.
  if (std::exchange(refused_, false)) {
    retry_.expires_after(kRetryInterval);
    retry_.async_wait(std::move(go_on));
  } else {
    readiness_.async_wait(boost::asio::posix::stream_descriptor::wait_read, std::move(go_on));
  }
}

void Outlet::close(int error) {
  error_ = error;
  if (when_closed) when_closed();
}

Outlets open_outlets(boost::asio::io_context& context) {
  struct stat out {};
  struct stat err {};
  const bool same = ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &err) == 0 &&
                    out.st_dev == err.st_dev && out.st_ino == err.st_ino;
  auto first = std::make_shared<Outlet>(context, STDOUT_FILENO);
  auto second = same ? first : std::make_shared<Outlet>(context, STDERR_FILENO);
  return {std::move(first), std::move(second)};
}

}  // namespace lockstep::control
