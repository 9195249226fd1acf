#include "control/launch/keeper_link.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace lockstep::control {
namespace {

using boost::asio::posix::stream_descriptor;

// Longer than the keeper allows itself for its own end.
constexpr std::chrono::seconds kKeeperLimit{12};

}  // namespace

KeeperLink::KeeperLink(boost::asio::io_context& context, Keeper keeper,
                       std::chrono::milliseconds kill_limit)
    : pid_(keeper.pid),
      context_(context),
      kill_limit_(kill_limit),
      events_(context),
      lifeline_(std::move(keeper.lifeline)),
      limit_(context) {
  base::set_nonblocking(keeper.events.get());
  events_.assign(keeper.events.release());
}

void KeeperLink::send(const KeeperOrder& order) {
  if (!lifeline_) return;
  // If the pipe is full, somebody has stopped the keeper. The order is dropped; release() wakes the keeper up.
  while (::write(lifeline_.get(), &order, sizeof order) < 0 && errno == EINTR) {
  }
  if (order.kind == KeeperOrder::Kind::kKill) await_end(order.value);
}

void KeeperLink::await_end(int worker) {
  const auto process = running_.find(worker);
  if (process == running_.end() || killed_.contains(process->second)) return;
  auto& timer = killed_.try_emplace(process->second, context_).first->second;
  timer.expires_after(kill_limit_);
  timer.async_wait([this, worker](const boost::system::error_code& error) {
    if (!error) give_up(worker);
  });
}

void KeeperLink::give_up(int worker) {
  const pid_t pid = running_.at(worker);
  running_.erase(worker);
  killed_.erase(pid);
  stuck_.insert(pid);
  if (when_stuck) when_stuck(worker, pid);
  when_event({KeeperEvent::Kind::kEnded, worker, pid, SIGKILL});
  when_event({KeeperEvent::Kind::kAllReported});
}

void KeeperLink::take(const KeeperEvent& event) {
  if (event.kind == KeeperEvent::Kind::kStarted) running_[event.rank] = event.pid;
  if (event.kind == KeeperEvent::Kind::kEnded) {
    if (stuck_.erase(event.pid) > 0) return;
    running_.erase(event.rank);
    killed_.erase(event.pid);
  }
  when_event(event);
}

void KeeperLink::release() {
  lifeline_.reset();
  ::kill(pid_, SIGCONT);
  limit_.expires_after(kKeeperLimit);
  limit_.async_wait([pid = pid_](const boost::system::error_code& error) {
    if (!error) ::kill(pid, SIGKILL);
  });
}

int KeeperLink::reap() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

void KeeperLink::wait() {
  events_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (!error) read_events();
  });
}

void KeeperLink::read_events() {
  std::array<KeeperEvent, 64> events;
  const ssize_t got = ::read(events_.native_handle(), events.data(), sizeof events);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return wait();
  if (got <= 0) {
    events_.close();
    limit_.cancel();
    return when_gone();
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(got) / sizeof(KeeperEvent); ++i)
    take(events[i]);
  wait();
}

}  // namespace lockstep::control
