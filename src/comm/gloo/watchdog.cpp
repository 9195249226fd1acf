#include "comm/gloo/watchdog.h"

namespace lockstep::comm {
namespace {

// Longer than any deadline; Gloo adds it to its clock.
constexpr auto kGlooForever = std::chrono::milliseconds(std::chrono::hours(24 * 400));

}  // namespace

Watchdog::Watchdog() : thread_([this] { loop(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Watchdog::interrupt(Watched& watched) {
  watched.interrupted = true;
  if (watched.direction == Direction::kSend) {
    watched.buffer->abortWaitSend();
  } else {
    watched.buffer->abortWaitRecv();
  }
}

bool Watchdog::wait(gloo::transport::UnboundBuffer& buffer, Direction direction,
                    Deadline deadline) {
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (interrupted_) return false;
    id = next_++;
    watched_[id] = {&buffer, direction, deadline, false};
    if (deadline.when() < wakes_) changed_.notify_all();
  }
  // Gloo keeps an interrupt that comes before the wait, and forgets it after: no wake-up is lost.
  const auto forget = [&] {
    const std::lock_guard lock(mutex_);
    watched_.erase(id);
  };
  try {
    const bool completed = direction == Direction::kSend ? buffer.waitSend(nullptr, kGlooForever)
                                                         : buffer.waitRecv(nullptr, kGlooForever);
    forget();
    return completed;
  } catch (...) {
    forget();
    throw;
  }
}

void Watchdog::interrupt_all() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  for (auto& [id, watched] : watched_) interrupt(watched);
}

void Watchdog::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wakes_ = Deadline::Clock::time_point::max();
    const auto now = Deadline::Clock::now();
    for (auto& [id, watched] : watched_) {
      if (watched.interrupted) continue;
      if (watched.deadline.when() <= now) {
        interrupt(watched);
      } else {
        wakes_ = std::min(wakes_, watched.deadline.when());
      }
    }
    if (wakes_ == Deadline::Clock::time_point::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, wakes_);
    }
  }
}

}  // namespace lockstep::comm
