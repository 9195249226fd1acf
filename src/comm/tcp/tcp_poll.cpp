#include "comm/tcp/tcp_poll.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace lockstep::comm {
namespace {

[[noreturn]] void no_room() {
  throw Unavailable(fmt::format("a connection cannot be watched: {}", std::strerror(errno)));
}

}  // namespace

TcpPoll::TcpPoll(std::size_t sockets)
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      writable_(sockets) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kBell;
  if (!epoll_ || !bell_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, bell_.get(), &event) != 0)
    no_room();
}

void TcpPoll::control(int operation, int socket, std::size_t who, bool writable) const {
  epoll_event event{};
  event.events = EPOLLIN | (writable ? EPOLLOUT : 0U);
  event.data.u64 = who;
  if (::epoll_ctl(epoll_.get(), operation, socket, &event) != 0 && errno != ENOENT) no_room();
}

void TcpPoll::watch(int socket, std::size_t who) {
  control(EPOLL_CTL_ADD, socket, who, writable_[who]);
}

void TcpPoll::set_writable(int socket, std::size_t who, bool wanted) {
  if (writable_[who] == wanted) return;
  control(EPOLL_CTL_MOD, socket, who, wanted);
  writable_[who] = wanted;
}

void TcpPoll::forget(int socket) const noexcept {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
}

void TcpPoll::ring() const noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(::write(bell_.get(), &one, sizeof one));
}

void TcpPoll::hear() const noexcept {
  std::uint64_t rings = 0;
  static_cast<void>(::read(bell_.get(), &rings, sizeof rings));
}

int TcpPoll::wait(std::span<Event> events, int milliseconds) const {
  std::array<epoll_event, kMostEvents> found;
  const int count = ::epoll_wait(epoll_.get(), found.data(), kMostEvents, milliseconds);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = found[static_cast<std::size_t>(i)];
    events[static_cast<std::size_t>(i)] = {event.data.u64,
                                           (event.events & ~static_cast<unsigned>(EPOLLOUT)) != 0};
  }
  return count;
}

}  // namespace lockstep::comm
