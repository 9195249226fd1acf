// Deadlines and interrupts for Gloo's waits. If a timeout of Gloo's own expires, Gloo closes every
// connection of the process. So its waits get no timeout, and this thread interrupts a wait that is
// late.
#pragma once

#include <gloo/transport/unbound_buffer.h>
#include <lockstep/deadline.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>

#include "base/mutex.h"

namespace lockstep::comm {

// Longer than any deadline, and short enough that Gloo can add it to its clock.
inline constexpr auto kGlooForever = std::chrono::milliseconds(std::chrono::hours(24 * 400));

enum class Direction { kSend, kRecv };

// Threads:   any.
// Blocking:  wait blocks until its deadline or an interrupt.
// Failure:   wait lets Gloo's exceptions through.
// Ownership: borrows the buffers while their waits last.
class Watchdog {
 public:
  Watchdog();
  ~Watchdog();

  enum class Verdict { kDone, kLate, kInterrupted };

  // Waits for a transfer with a peer. The transfer may have completed although the wait was
  // interrupted. `over` is asked after the wait is registered. So if another thread makes it true
  // and then interrupts, this wait sees one or the other.
  Verdict wait(gloo::transport::UnboundBuffer& buffer, Direction direction, int peer,
               Deadline deadline, const std::function<bool()>& over = nullptr);

  // Ends the waits that there are now, with one peer or with all.
  void interrupt(int peer);
  void interrupt_all();

 private:
  struct Watched {
    gloo::transport::UnboundBuffer* buffer = nullptr;
    Direction direction = Direction::kSend;
    int peer = 0;
    Deadline deadline = Deadline::after(std::chrono::seconds(0));
    Verdict verdict = Verdict::kDone;  // why this object has interrupted it; kDone: it has not
  };
  void loop();
  static void end(Watched& watched, Verdict verdict);

  base::Mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Watched> watched_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t next_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  Deadline::Clock::time_point wakes_ LOCKSTEP_GUARDED_BY(mutex_) =
      Deadline::Clock::time_point::max();
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep::comm
