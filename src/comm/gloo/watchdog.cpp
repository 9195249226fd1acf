#include "comm/gloo/watchdog.h"

namespace lockstep::comm {

Watchdog::Watchdog() : thread_([this] { loop(); }) {}

Watchdog::~Watchdog() {
  {
    const base::Lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Watchdog::end(Watched& watched, Verdict verdict) {
  if (watched.verdict != Verdict::kDone) return;
  watched.verdict = verdict;
  if (watched.direction == Direction::kSend) {
    watched.buffer->abortWaitSend();
  } else {
    watched.buffer->abortWaitRecv();
  }
}

Watchdog::Verdict Watchdog::wait(gloo::transport::UnboundBuffer& buffer, Direction direction,
                                 int peer, Deadline deadline, const std::function<bool()>& over) {
  std::uint64_t id = 0;
  {
    const base::Lock lock(mutex_);
    id = next_++;
    watched_[id] = {&buffer, direction, peer, deadline, Verdict::kDone};
    if (deadline.when() < wakes_) changed_.notify_all();
  }
  if (over && over()) {
    const base::Lock lock(mutex_);
    end(watched_[id], Verdict::kInterrupted);
  }
  const auto forget = [&] {
    const base::Lock lock(mutex_);
    const Verdict verdict = watched_[id].verdict;
    watched_.erase(id);
    return verdict;
  };
  try {
    // Gloo keeps an interrupt that comes before the wait, and forgets it after the wait. So none is
    // lost.
    const bool completed = direction == Direction::kSend ? buffer.waitSend(nullptr, kGlooForever)
                                                         : buffer.waitRecv(nullptr, kGlooForever);
    const Verdict verdict = forget();
    if (completed) return Verdict::kDone;
    // Without a verdict of this object, the interrupt was Transfer::cancel(), which must return
    // false as at a deadline.
    return verdict == Verdict::kDone ? Verdict::kLate : verdict;
  } catch (...) {
    forget();
    throw;
  }
}

void Watchdog::interrupt(int peer) {
  const base::Lock lock(mutex_);
  for (auto& [id, watched] : watched_) {
    if (watched.peer == peer) end(watched, Verdict::kInterrupted);
  }
}

void Watchdog::interrupt_all() {
  const base::Lock lock(mutex_);
  for (auto& [id, watched] : watched_) end(watched, Verdict::kInterrupted);
}

void Watchdog::loop() {
  base::Lock lock(mutex_);
  while (!stopping_) {
    wakes_ = Deadline::Clock::time_point::max();
    const auto now = Deadline::Clock::now();
    for (auto& [id, watched] : watched_) {
      if (watched.verdict != Verdict::kDone) continue;
      if (watched.deadline.when() <= now) {
        end(watched, Verdict::kLate);
      } else {
        wakes_ = std::min(wakes_, watched.deadline.when());
      }
    }
    if (wakes_ == Deadline::Clock::time_point::max()) {
      lock.wait(changed_);
    } else {
      lock.wait_until(changed_, wakes_);
    }
  }
}

}  // namespace lockstep::comm
