// Deadlines and interrupts for Gloo's waits. Gloo's own time-outs close every connection of the
// process, so its waits are called without one, and this thread interrupts the wait that is late.
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

// Longer than any deadline; Gloo adds it to its clock.
inline constexpr auto kGlooForever = std::chrono::milliseconds(std::chrono::hours(24 * 400));

enum class Direction { kSend, kRecv };

// Threads:   any.
// Blocking:  wait, until its deadline or an interrupt.
// Failure:   wait lets Gloo's exceptions through.
class Watchdog {
 public:
  Watchdog();
  ~Watchdog();

  enum class Verdict { kDone, kLate, kInterrupted };

  // Waits for a transfer with a peer. It may have completed although it was interrupted. `over` is asked after the wait
  // is registered: whoever makes it true and then interrupts cannot be missed.
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
    Verdict verdict = Verdict::kDone;  // what its end by this object will mean
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
