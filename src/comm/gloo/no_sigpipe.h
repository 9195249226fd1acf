// Gloo writes to sockets that may be closed, with a call that raises SIGPIPE. The signal would end
// the process. A library must not change the signal actions of the process, so the signal is
// blocked on the calling thread instead.
#pragma once

#include <signal.h>

#include <ctime>

namespace lockstep::comm {

// While it lives, SIGPIPE does not reach this thread. A SIGPIPE that was raised meanwhile is
// removed at the end. Threads that are started meanwhile never get SIGPIPE.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec now{0, 0};
    if (!was_pending_) sigtimedwait(&sigpipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace lockstep::comm
