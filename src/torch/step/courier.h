// Sends and receives the letters of a worker in an asynchronous round, while the worker computes. It also does what the worker owes the
// others: as owner of a slice of the weights, and, on one worker, as the clerk (plan/clerk.h).
#pragma once

#include <lockstep/comm.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "plan/clerk.h"
#include "torch/step/asynchronous_round.h"
#include "torch/step/letters.h"
#include "torch/step/slice_owner.h"
#include "torch/step/slices.h"

namespace lockstep::steps {

// What a worker asks of its courier, and what the courier brings.
//
// Threads:   one worker and one courier.
// Blocking:  wait_for() and rest(), until the time given.
// Failure:   wait_for() what the courier has brought.
// Ownership: keeps requests and what was brought.
class Errands {
 public:
  // What the courier brings to the worker.
  struct Brought {
    std::optional<plan::Clerk::Answer> answer;
    std::set<int> slices;  // of the weights that were asked for, by their owners
    bool ended = false;
    std::exception_ptr failure = nullptr;
  };
  using Request = std::function<void()>;
  using Ready = std::function<bool(const Brought& brought)>;

  // The worker's. wait_for(): what was brought, ready or not if the time has come. `waits` is called if there is anything to
  // wait for.
  void post(Request request);
  Brought wait_for(const Ready& ready, Deadline deadline, const std::function<void()>& waits);
  void stop();

  // The courier's. rest() returns as soon as there is a request. stopped(): it is to end, with what was asked for.
  std::deque<Request> requests();
  void bring(const std::function<void(Brought&)>& change);
  void rest(std::chrono::microseconds time);
  bool stopped();

 private:
  base::Mutex mutex_;
  std::condition_variable to_worker_, to_courier_;
  std::deque<Request> requests_ LOCKSTEP_GUARDED_BY(mutex_);
  Brought brought_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

// Threads:   one caller at a time; its own thread stays inside.
// Blocking:  ask(), take() and end(): at most the Comm's timeout for what others must do.
// Failure:   PeerLost, Timeout, Mismatch, after which the Comm is dead. The constructor throws Unavailable if no thread can be started.
// Ownership: borrows the setting, the cut and the Comm.
class Courier {
 public:
  Courier(const AsynchronousRound::Setting& its, const Cut& cut, Comm& comm);
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;
  ~Courier();

  plan::Clerk::Answer ask();
  // All slices, as they are then, into these.
  void take(std::int64_t task, SliceMemory& weights, Letterbox::Bytes& buffers);
  // A gradient: a part for each owner (Cut).
  void give(std::int64_t task, double factor, const plan::TaskLoss& loss,
            std::vector<Letterbox::Bytes> parts);
  // Waits for the end of the log. Then all owners have what they own.
  plan::TaskLoss end();
  SliceOwner& owner() { return owner_; }
  plan::RoundOrder order() const { return clerk_ ? clerk_->order() : plan::RoundOrder(); }

 private:
  Errands::Brought wait_for(const Errands::Ready& ready, const std::string& what);

  // Of its thread.
  void run() noexcept;
  bool carry();
  bool do_requests();
  bool follow_log();
  void handle(Letterbox::Received received);
  void handle_by_clerk(int from, const Letter& letter);
  void tell_clerk(const Letter& letter);
  void speak_for_clerk();
  void put_weights(int owner, const Letterbox::Bytes& bytes);
  std::size_t bytes_with(int from, const Letter& letter) const;

  const AsynchronousRound::Setting& its_;
  const Cut& cut_;
  Comm& comm_;
  SliceOwner owner_;
  Letterbox letters_;
  std::optional<plan::Clerk> clerk_;
  // Where the weights go that the worker takes.
  SliceMemory* weights_ = nullptr;
  Letterbox::Bytes* buffers_ = nullptr;
  std::optional<plan::TaskLoss> loss_;  // of the round: the log has ended
  Errands errands_;
  std::thread thread_;
};

}  // namespace lockstep::steps
