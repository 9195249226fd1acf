// Operations that are queued on a device, and the thread that looks after them: a device that waits for a dead worker
// waits for ever, and with it everything queued behind, whether or not anybody on the host waits for it.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/nccl/communicator.h"

namespace lockstep::comm {

// Wakes the watching thread.
struct Bell {
  std::mutex mutex;
  std::condition_variable rings;
  bool rung = false;

  void ring() {
    const std::lock_guard lock(mutex);
    rung = true;
    rings.notify_all();
  }
};

// One operation on the device.
class Flight : public DeviceWork {
 public:
  // `end` comes last on the communicator's stream.
  Flight(const Communicator& communicator, std::unique_ptr<OwnEvent> end, std::string doing,
         std::shared_ptr<Bell> bell);

  bool done() override;
  void wait() override { wait_until(std::nullopt); }
  void wait(Deadline deadline) override { wait_until(deadline); }
  void wait_on(void* stream) override;

  // Of the watching thread. Well ended, as far as is known; why it was given up by a caller.
  bool has_ended();
  std::optional<Failure> given_up();
  void fail(const Failure& failure);

 private:
  void wait_until(std::optional<Deadline> deadline);

  std::unique_ptr<OwnEvent> end_;
  std::shared_ptr<std::atomic<bool>> aborted_;
  std::string doing_;
  std::shared_ptr<Bell> bell_;
  std::mutex mutex_;
  bool ended_ = false;
  std::optional<Failure> failure_;
  std::optional<Failure> given_up_;
};

// Threads:   any; its own thread begins with the first operation.
// Blocking:  forget and the destructor, until what is under way has ended, or was aborted.
// Failure:   add throws Unavailable when the thread cannot start. The thread ends the link with what it finds, then the
//            communicators that have operations under way, then those.
// Ownership: borrows the link.
class DeviceWatchdog {
 public:
  explicit DeviceWatchdog(Link& link) : link_(link), bell_(std::make_shared<Bell>()) {}
  ~DeviceWatchdog();

  const std::shared_ptr<Bell>& bell() const { return bell_; }

  // An operation takes at most `timeout` from the end of the one before it on the same communicator.
  void add(std::shared_ptr<Flight> flight, std::shared_ptr<Communicator> communicator,
           std::shared_ptr<WaitCheck> check, std::chrono::milliseconds timeout);

  // Nothing of the communicator is under way after.
  void forget(const Communicator& communicator);
  bool idle(const Communicator& communicator);

 private:
  struct Entry {
    std::shared_ptr<Flight> flight;
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<WaitCheck> check;
    std::chrono::milliseconds timeout{0};
    bool first = false;  // of its communicator, since when the check counts
  };
  static constexpr auto kInterval = std::chrono::milliseconds(1);

  void begin();
  void loop();
  std::optional<Failure> look();
  void end_all(const Failure& failure);
  void drop_ended();

  Link& link_;
  std::shared_ptr<Bell> bell_;
  std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_;  // in the order queued
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep::comm
