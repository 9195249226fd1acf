// A formed world over Gloo: messages through unbound buffers, and notices of failure.
//
//   notice   a fixed-size message in which a worker says why it ends. Memory for one from every
//   peer is posted
//            when the world forms, so that it goes out at once whatever else is under way. Whoever
//            then finds the connection closed looks for the notice first, and tells that story.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/core/link.h"
#include "comm/gloo/watchdog.h"

namespace lockstep::comm {

class GlooLink : public Link {
 public:
  // `context` is a full mesh.
  explicit GlooLink(std::shared_ptr<gloo::rendezvous::Context> context);
  ~GlooLink() override;

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }
  std::string engine() const override { return "gloo"; }

  std::unique_ptr<Transfer> send(int peer, Slot slot, const void* data, std::size_t bytes) override;
  std::unique_ptr<Transfer> recv(int peer, Slot slot, void* data, std::size_t bytes) override;
  void fail(const Failure& failure) noexcept override;
  std::optional<Failure> failure() const override;
  bool native_all_reduce(const Buffer& data, ReduceOp op, std::uint32_t tag,
                         Deadline deadline) override;

 private:
  friend class GlooTransfer;
  struct Notice {
    std::string bytes;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  };
  std::unique_ptr<Transfer> post(Direction direction, int peer, Slot slot, void* data,
                                 std::size_t bytes);
  void end(const Failure& failure) noexcept;
  void tell_peers(const Failure& failure) noexcept;
  std::optional<Failure> notice_of(int peer) noexcept;
  // What a Gloo exception about a peer means.
  [[noreturn]] void explain(int peer, const std::exception& error);

  std::shared_ptr<gloo::rendezvous::Context> context_;
  Watchdog watchdog_;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
  std::mutex notices_mutex_;
  std::vector<Notice> notices_;  // by peer; received ones
  std::vector<Notice> told_;     // sent ones, alive until the connections are closed
};

}  // namespace lockstep::comm
