// Learns that a peer has ended, and what it said before.
//
//   notice     a message of fixed size in which a worker says why it ends. Memory for a notice from
//              every peer is posted when the world forms, so that a notice can be sent at once
//   receipt    the answer to a notice: everything that was sent before it has arrived. If a
//              connection is closed without a receipt, bytes in the sender's socket may be lost
//
// One thread per peer sleeps in Gloo until the notice comes or the connection breaks. Gloo does not
// wake every transfer of a broken connection: a send that was half written stays asleep. So the end
// of a peer must interrupt these transfers.
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

// The monitor of a link over Gloo.
//
// Threads:   any.
// Blocking:  await blocks until its deadline. The destructor interrupts the threads.
// Failure:   if a thread cannot start, the constructor throws what Gloo or the host throws.
// Ownership: the context must outlive it.
class GlooMonitor {
 public:
  // `on_end` is called once for each peer that ends, with what it said, on a thread of this object.
  using OnEnd = std::function<void(int peer, const std::optional<Failure>& said)>;
  GlooMonitor(gloo::Context& context, Watchdog& watchdog, OnEnd on_end);
  ~GlooMonitor();

  bool ended(int peer) const;
  // Waits until the peer has ended. Returns what it said.
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

// Operations use only 0 to 3 of every eight slots, so these two are free.
inline constexpr std::uint64_t kNoticeSlot = (std::uint64_t{1} << 63) | 7;
inline constexpr std::uint64_t kReceiptSlot = (std::uint64_t{1} << 63) | 5;

}  // namespace lockstep::comm
