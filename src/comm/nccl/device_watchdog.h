// Operations that are queued on a device, and the thread that watches over them. A device that
// waits for a dead worker waits for ever, and so does everything that is queued behind it. This
// must end even if no thread of the host waits for it.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "comm/nccl/communicator.h"

namespace lockstep::comm {

// Wakes the watchdog's thread. Shared, because a Flight may outlive the watchdog.
struct Bell {
  base::Mutex mutex;
  std::condition_variable rings;
  bool rung LOCKSTEP_GUARDED_BY(mutex) = false;

  void ring() {
    const base::Lock lock(mutex);
    rung = true;
    rings.notify_all();
  }
  // Until it is rung, or the time given. A ring before the call counts.
  void wait(std::optional<Deadline> until) {
    base::Lock lock(mutex);
    while (!rung) {
      if (!until) {
        lock.wait(rings);
      } else if (!lock.wait_until(rings, until->when())) {
        break;
      }
    }
    rung = false;
  }
};

// One operation on the device. It has ended well if its event has come and the communicator was not
// aborted: an abort lets events come, too.
class Flight : public DeviceWork {
 public:
  // `end` is the last event of the operation on the communicator's stream.
  Flight(const Communicator& communicator, std::unique_ptr<OwnEvent> end, std::string doing,
         std::shared_ptr<Bell> bell);

  bool done() override;
  void wait() override { wait_until(std::nullopt); }
  void wait(Deadline deadline) override { wait_until(deadline); }
  void wait_on(void* stream) override;

  // For the watchdog's thread. has_ended: it has ended well. given_up: why a caller has given it
  // up, or that the device is lost.
  bool has_ended();
  std::optional<Failure> given_up();
  void fail(const Failure& failure);

 private:
  void wait_until(std::optional<Deadline> deadline);

  std::unique_ptr<OwnEvent> end_;
  std::shared_ptr<std::atomic<bool>> aborted_;
  std::string doing_;
  std::shared_ptr<Bell> bell_;
  base::Mutex mutex_;
  bool ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::optional<Failure> failure_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Failure> given_up_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Watches over all operations in flight of one link.
//
// Threads:   any; its own thread starts with the first operation.
// Blocking:  forget and the destructor block until the operations in flight have ended or were
//            aborted.
// Failure:   add throws Unavailable if the thread cannot start. If the thread finds a failure, it
//            first ends the link, so that the peers are told at once. Then it aborts the
//            communicators that have operations in flight, and last it fails these operations:
//            their buffers are free then.
// Ownership: borrows the link.
class DeviceWatchdog {
 public:
  explicit DeviceWatchdog(Link& link) : link_(link), bell_(std::make_shared<Bell>()) {}
  ~DeviceWatchdog();

  const std::shared_ptr<Bell>& bell() const { return bell_; }

  // An operation takes at most `timeout`, counted from the end of the one before it on the same
  // communicator.
  void add(std::shared_ptr<Flight> flight, std::shared_ptr<Communicator> communicator,
           std::shared_ptr<WaitCheck> check, std::chrono::milliseconds timeout);

  // Waits until no operation of the communicator is in flight.
  void forget(const Communicator& communicator);
  bool idle(const Communicator& communicator);

 private:
  struct Entry {
    std::shared_ptr<Flight> flight;
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<WaitCheck> check;
    std::chrono::milliseconds timeout{0};
    // It is the first of its communicator now, and its time runs. For the watchdog's thread only.
    bool first = false;
  };
  static constexpr auto kInterval = std::chrono::milliseconds(1);

  void begin() LOCKSTEP_REQUIRES(mutex_);
  void loop();
  std::optional<Failure> look();
  void end_all(const Failure& failure);
  void drop_ended();

  Link& link_;
  std::shared_ptr<Bell> bell_;
  base::Mutex mutex_;
  // In the order queued.
  std::list<std::shared_ptr<Entry>> entries_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // The destructor joins it without the mutex, which the thread takes.
  std::thread thread_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::comm
