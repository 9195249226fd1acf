#include "control/launch/keeper_link.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace lockstep::control {

KeeperLink::KeeperLink(boost::asio::io_context& context, Keeper keeper)
    : pid_(keeper.pid), events_(context), lifeline_(std::move(keeper.lifeline)) {
  base::set_nonblocking(keeper.events.get());
  events_.assign(keeper.events.release());
}

void KeeperLink::forward(int signal) {
  if (!lifeline_) return;
  // A pipe that is full means a keeper that somebody has stopped; it wakes up at release().
  const std::int32_t message = signal;
  while (::write(lifeline_.get(), &message, sizeof message) < 0 && errno == EINTR) {
  }
}

void KeeperLink::release() {
  lifeline_.reset();
  ::kill(pid_, SIGCONT);
}

void KeeperLink::kill() {
  ::kill(pid_, SIGKILL);
}

int KeeperLink::reap() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

void KeeperLink::wait() {
  events_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [this](const boost::system::error_code& error) {
                       if (!error) read_events();
                     });
}

void KeeperLink::read_events() {
  std::array<KeeperEvent, 64> events;
  const ssize_t got = ::read(events_.native_handle(), events.data(), sizeof events);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return wait();
  if (got <= 0) {
    events_.close();
    return when_gone();
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(got) / sizeof(KeeperEvent); ++i)
    when_event(events[i]);
  wait();
}

}  // namespace lockstep::control
