// What each peer says before it ends, and that it has ended.
//
//   notice     a fixed-size message in which a worker says why it ends. Memory for one from every
//              peer is posted when the world forms, so that it goes out at once
//   receipt    the answer to a notice: everything sent before it has arrived. A connection that is
//              closed without may take with it what still lies in the sender's socket
//
// One thread per peer sleeps in Gloo until the notice comes or the connection breaks. Gloo does not
// wake every transfer of a broken connection (a send that was half written stays asleep), so this
// news is what wakes them.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <lockstep/deadline.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "comm/core/failure.h"
#include "comm/core/link.h"
#include "comm/gloo/watchdog.h"

namespace lockstep::comm {

// Threads:   any.
// Blocking:  await, until its deadline; the destructor interrupts the threads.
// Failure:   the constructor lets through what Gloo or the host says when a thread cannot start.
// Ownership: the context must outlive it.
class GlooMonitor {
 public:
  // `on_end` is called once for each peer that ends, with what it said, on a thread of this object.
  using OnEnd = std::function<void(int peer, const std::optional<Failure>& said)>;
  GlooMonitor(gloo::Context& context, Watchdog& watchdog, OnEnd on_end);
  ~GlooMonitor();

  bool ended(int peer) const;
  // Waits until the peer has ended; what it said.
  std::optional<Failure> await(int peer, Deadline deadline) const;

 private:
  struct Peer {
    std::string bytes;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    std::thread thread;
  };
  struct News {
    bool ended = false;
    std::optional<Failure> said;
  };
  void stop();
  void listen(int number);
  void send_receipt(int number);

  gloo::Context& context_;
  Watchdog& watchdog_;
  OnEnd on_end_;
  mutable base::Mutex mutex_;
  mutable std::condition_variable changed_;
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<News> news_ LOCKSTEP_GUARDED_BY(mutex_);  // by rank, as the next
  std::vector<Peer> peers_;                             // this worker's own is unused
};

// Operations use 0 to 3 of every eight slots.
inline constexpr std::uint64_t kNoticeSlot = (std::uint64_t{1} << 63) | 7;
inline constexpr std::uint64_t kReceiptSlot = (std::uint64_t{1} << 63) | 5;

}  // namespace lockstep::comm
