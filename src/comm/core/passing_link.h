// A link that passes everything on to another one. What adds something to a link derives from it.
#pragma once

#include <memory>
#include <utility>

#include "comm/core/link.h"

namespace lockstep::comm {

// Threads, Blocking, Failure: as the link below, which it shares.
class PassingLink : public Link {
 public:
  explicit PassingLink(std::shared_ptr<Link> below) : below_(std::move(below)) {}

  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  std::string engine() const override { return below_->engine(); }
  bool over_network() const override { return below_->over_network(); }
  std::span<const int> hosts() const override { return below_->hosts(); }

  std::unique_ptr<Transfer> send(int peer, Slot slot, const void* data,
                                 std::size_t bytes) override {
    return below_->send(peer, slot, data, bytes);
  }
  std::unique_ptr<Transfer> recv(int peer, Slot slot, void* data, std::size_t bytes) override {
    return below_->recv(peer, slot, data, bytes);
  }
  void fail(const Failure& failure) noexcept override { below_->fail(failure); }
  std::optional<Failure> failure() const override { return below_->failure(); }
  void tell(const Failure& failure) noexcept override { below_->tell(failure); }
  std::optional<Failure> heard_from(int peer, Deadline deadline) noexcept override {
    return below_->heard_from(peer, deadline);
  }
  void waits_for(int peer) noexcept override { below_->waits_for(peer); }
  std::optional<std::chrono::microseconds> patience_in_call() const override {
    return below_->patience_in_call();
  }
  void received_by(int peer, std::uint64_t messages) noexcept override {
    below_->received_by(peer, messages);
  }
  std::optional<Failure> end_of(int peer) const override { return below_->end_of(peer); }

  Host* host() override { return below_->host(); }
  std::unique_ptr<Board> make_board(std::uint64_t group, std::span<const int> members) override {
    return below_->make_board(group, members);
  }
  std::unique_ptr<DeviceGroup> make_device_group(std::span<const int> members,
                                                 std::chrono::milliseconds timeout) override {
    return below_->make_device_group(members, timeout);
  }

 protected:
  Link& below() const { return *below_; }

 private:
  std::shared_ptr<Link> below_;
};

}  // namespace lockstep::comm
