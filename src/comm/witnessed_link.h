// A link whose end somebody hears of.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "comm/core/link.h"
#include "comm/engines.h"

namespace lockstep::comm {

// Threads, Blocking, Failure: as the link below, which it owns.
class WitnessedLink : public Link {
 public:
  WitnessedLink(std::shared_ptr<Link> link, OnFailure on_failure)
      : link_(std::move(link)), on_failure_(std::move(on_failure)) {}

  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }
  std::string engine() const override { return link_->engine(); }
  bool over_network() const override { return link_->over_network(); }

  std::unique_ptr<Transfer> send(int peer, Slot slot, const void* data,
                                 std::size_t bytes) override {
    return link_->send(peer, slot, data, bytes);
  }
  std::unique_ptr<Transfer> recv(int peer, Slot slot, void* data, std::size_t bytes) override {
    return link_->recv(peer, slot, data, bytes);
  }

  // The door through which every failure leaves. In a child of fork() the link is not this process's, and has not failed.
  void fail(const Failure& failure) noexcept override {
    link_->fail(failure);
    if (const auto reason = link_->failure(); reason && !told_.exchange(true)) on_failure_(*reason);
  }
  std::optional<Failure> failure() const override { return link_->failure(); }
  void tell(const Failure& failure) noexcept override { link_->tell(failure); }
  std::optional<Failure> heard_from(int peer, Deadline deadline) noexcept override {
    return link_->heard_from(peer, deadline);
  }
  void waits_for(int peer) noexcept override { link_->waits_for(peer); }
  std::optional<Failure> end_of(int peer) const override { return link_->end_of(peer); }

  Host* host() override { return link_->host(); }
  std::unique_ptr<Board> make_board(std::uint64_t group, std::span<const int> members) override {
    return link_->make_board(group, members);
  }
  std::unique_ptr<DeviceGroup> make_device_group(std::span<const int> members,
                                                 std::chrono::milliseconds timeout) override {
    return link_->make_device_group(members, timeout);
  }
  bool has_native_all_reduce() const override { return link_->has_native_all_reduce(); }
  void native_all_reduce(const Buffer& data, ReduceOp op, std::uint32_t tag,
                         Deadline deadline) override {
    link_->native_all_reduce(data, op, tag, deadline);
  }

 private:
  std::shared_ptr<Link> link_;
  OnFailure on_failure_;
  std::atomic<bool> told_{false};
};

}  // namespace lockstep::comm
