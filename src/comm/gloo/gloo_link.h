// A formed world over Gloo: messages through unbound buffers, and word of failure.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "comm/core/link.h"
#include "comm/gloo/gloo_monitor.h"
#include "comm/gloo/watchdog.h"

namespace lockstep::comm {

// A Link as link.h describes it. A worker that ends sends a notice to each peer and waits for
// receipts, because a closed connection can take unsent messages with it (gloo_monitor.h).
class GlooLink : public Link {
 public:
  // How long a worker that ends waits until its peers have its notice. A worker that leaves without
  // a failure waits longer, because its last messages may still be in flight.
  static constexpr auto kNoticePatience = std::chrono::milliseconds(200);
  static constexpr auto kLeavePatience = std::chrono::milliseconds(3000);

  // `context` is a full mesh. A child of fork() has a copy of the link that it never destroys: the
  // connections belong to its parent, and the threads that the destructor would wait for are in the
  // parent, too.
  static std::shared_ptr<GlooLink> make(std::shared_ptr<gloo::rendezvous::Context> context);
  ~GlooLink() override;

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }
  std::string engine() const override { return "gloo"; }
  bool over_network() const override { return true; }

  std::unique_ptr<Transfer> send(int peer, Slot slot, const void* data, std::size_t bytes) override;
  std::unique_ptr<Transfer> recv(int peer, Slot slot, void* data, std::size_t bytes) override;
  void fail(const Failure& failure) noexcept override;
  std::optional<Failure> failure() const override;
  void tell(const Failure& failure) noexcept override { tell(failure, kNoticePatience); }
  std::optional<Failure> heard_from(int peer, Deadline deadline) noexcept override;
  void waits_for(int peer) noexcept override { waits_for_.store(peer, std::memory_order_relaxed); }
  std::optional<Failure> end_of(int peer) const override;
  bool has_native_all_reduce() const override { return true; }
  void native_all_reduce(const Buffer& data, ReduceOp op, std::uint32_t tag,
                         Deadline deadline) override;

 private:
  friend class GlooTransfer;
  explicit GlooLink(std::shared_ptr<gloo::rendezvous::Context> context);

  struct Notice {
    std::string bytes;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;  // null until it is sent
    char receipt = 0;
    std::unique_ptr<gloo::transport::UnboundBuffer> receipt_buffer;
  };
  std::unique_ptr<Transfer> post(Direction direction, int peer, Slot slot, void* data,
                                 std::size_t bytes);
  void end(const Failure& failure, std::chrono::milliseconds patience) noexcept;
  void tell(const Failure& failure, std::chrono::milliseconds patience) noexcept;
  void answer(int peer, const Failure& said) noexcept;
  // Throws why nothing more comes from a peer: this link has ended, the peer has ended and said
  // why, or the peer was lost.
  [[noreturn]] void explain(int peer, const std::string& detail);

  int pid_ = ::getpid();
  std::shared_ptr<gloo::rendezvous::Context> context_;
  Watchdog watchdog_;
  mutable base::Mutex mutex_;
  std::optional<Failure> failure_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<int> waits_for_{kNoRank};
  base::Mutex told_mutex_;
  bool told_all_ LOCKSTEP_GUARDED_BY(told_mutex_) = false;
  // By peer, alive until the connections are closed.
  std::vector<Notice> told_ LOCKSTEP_GUARDED_BY(told_mutex_);
  GlooMonitor news_;  // last: its threads use the rest
};

}  // namespace lockstep::comm
