#include "comm/nccl/nccl_engine.h"

#include "comm/nccl/device_group.h"
#include "comm/nccl/device_watchdog.h"

namespace lockstep::comm {
namespace {

class NcclLink : public Link {
 public:
  NcclLink(std::shared_ptr<Link> host, std::shared_ptr<NcclApi> api)
      : host_(std::move(host)), api_(std::move(api)), watch_(*host_) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string engine() const override { return "nccl"; }
  bool over_network() const override { return host_->over_network(); }

  std::unique_ptr<Transfer> send(int peer, Slot slot, const void* data,
                                 std::size_t bytes) override {
    return host_->send(peer, slot, data, bytes);
  }
  std::unique_ptr<Transfer> recv(int peer, Slot slot, void* data, std::size_t bytes) override {
    return host_->recv(peer, slot, data, bytes);
  }
  // The watchdog sees the failure of the host's link and ends what is in flight on the device.
  void fail(const Failure& failure) noexcept override { host_->fail(failure); }
  std::optional<Failure> failure() const override { return host_->failure(); }
  void tell(const Failure& failure) noexcept override { host_->tell(failure); }
  std::optional<Failure> heard_from(int peer, Deadline deadline) noexcept override {
    return host_->heard_from(peer, deadline);
  }
  void waits_for(int peer) noexcept override { host_->waits_for(peer); }
  std::optional<Failure> end_of(int peer) const override { return host_->end_of(peer); }
  Host* host() override { return host_->host(); }
  std::unique_ptr<Board> make_board(std::uint64_t group, std::span<const int> members) override {
    return host_->make_board(group, members);
  }
  std::unique_ptr<DeviceGroup> make_device_group(std::span<const int> members,
                                                 std::chrono::milliseconds timeout) override {
    return std::make_unique<NcclGroup>(*host_, watch_, api_,
                                       std::vector<int>(members.begin(), members.end()), timeout);
  }

 private:
  std::shared_ptr<Link> host_;
  std::shared_ptr<NcclApi> api_;
  DeviceWatchdog watch_;  // last, because its thread uses the rest
};

}  // namespace

std::shared_ptr<Link> make_nccl_link(std::shared_ptr<Link> host, std::shared_ptr<NcclApi> api) {
  return std::make_shared<NcclLink>(std::move(host), std::move(api));
}

}  // namespace lockstep::comm
