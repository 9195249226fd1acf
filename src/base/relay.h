// Functions that wait for each other, of which one runs at a time.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace lockstep::base {

// Runs functions on threads of their own, of which exactly one runs at any time. A function runs until it comes to a
// meeting. Then the next one runs. When all have come, they go on, the first one first. So what they compute is what they
// would compute one after the other, but for the meetings.
//
// Threads:   run() one caller at a time; meet() inside of run(), by the function that has the number.
// Blocking:  run(), as long as the functions run; meet(), as long as the others run.
// Failure:   Unavailable if the host starts no more threads. run() throws what the first function that failed has thrown. The others are unwound: their meet() throws
//            Abandoned. BadInput if functions come to different meetings, or if one ends while another waits.
// Ownership: owns its threads, and keeps them from run to run.
class Relay {
 public:
  explicit Relay(int most);  // functions at a time
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  struct Abandoned : std::exception {
    const char* what() const noexcept override { return "another function has failed"; }
  };

  // function(0), function(1) …, one for each name. The names are for error messages.
  void run(const std::vector<std::string>& names, const std::function<void(int)>& function);

  // Waits until all functions have come to this meeting. The last one that comes runs `together`, before any goes on.
  void meet(int number, const std::string& name, const std::function<void()>& together);

 private:
  static constexpr int kCaller = -1;
  struct Runner {
    std::thread thread;
    std::string name;
    std::condition_variable its_turn;
    std::string meeting;  // where it is, or was last
    bool ended = true;
  };

  void serve(int number);
  void close();
  void give_turn(int number) LOCKSTEP_REQUIRES(mutex_);
  int first_from(int number) const LOCKSTEP_REQUIRES(mutex_);  // that has not ended; kCaller: none
  void check_meeting(int number) const LOCKSTEP_REQUIRES(mutex_);
  void fail(std::exception_ptr error) LOCKSTEP_REQUIRES(mutex_);

  Mutex mutex_;
  std::condition_variable ended_;  // the turn is the caller's
  std::deque<Runner> runners_;
  const std::function<void(int)>* function_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;
  int turn_ LOCKSTEP_GUARDED_BY(mutex_) = kCaller;
  bool closes_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(mutex_);  // of the first that failed
};

}  // namespace lockstep::base
