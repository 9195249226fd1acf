// Deadlines for Gloo's waits. Gloo's own time-outs close every connection of the process, so its
// waits are called without one, and this thread interrupts the wait that is late.
#pragma once

#include <gloo/transport/unbound_buffer.h>
#include <lockstep/deadline.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

namespace lockstep::comm {

enum class Direction { kSend, kRecv };

// Threads:   any.
// Blocking:  wait, until its deadline or an interrupt.
// Failure:   wait lets Gloo's exceptions through.
class Watchdog {
 public:
  Watchdog();
  ~Watchdog();

  // True when the transfer has completed, false at the deadline or after an interrupt.
  bool wait(gloo::transport::UnboundBuffer& buffer, Direction direction, Deadline deadline);

  // Ends every wait, now and from now on.
  void interrupt_all();

 private:
  struct Watched {
    gloo::transport::UnboundBuffer* buffer = nullptr;
    Direction direction = Direction::kSend;
    Deadline deadline = Deadline::after(std::chrono::seconds(0));
    bool interrupted = false;
  };
  void loop();
  static void interrupt(Watched& watched);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Watched> watched_;
  std::uint64_t next_ = 0;
  Deadline::Clock::time_point wakes_ = Deadline::Clock::time_point::max();
  bool interrupted_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep::comm
