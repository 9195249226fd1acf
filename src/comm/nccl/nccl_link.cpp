#include "comm/nccl/nccl_engine.h"

#include "comm/core/passing_link.h"
#include "comm/nccl/device_group.h"
#include "comm/nccl/device_watchdog.h"

namespace lockstep::comm {
namespace {

// Failures are those of the link between the hosts. The watchdog sees them and ends what is in
// flight on the device.
class NcclLink : public PassingLink {
 public:
  NcclLink(std::shared_ptr<Link> host, std::shared_ptr<NcclApi> api)
      : PassingLink(std::move(host)), api_(std::move(api)), watch_(below()) {}

  std::string engine() const override { return "nccl"; }
  std::unique_ptr<DeviceGroup> make_device_group(std::span<const int> members,
                                                 std::chrono::milliseconds timeout) override {
    return std::make_unique<NcclGroup>(below(), watch_, api_,
                                       std::vector<int>(members.begin(), members.end()), timeout);
  }

 private:
  std::shared_ptr<NcclApi> api_;
  DeviceWatchdog watch_;  // last, because its thread uses the rest
};

}  // namespace

std::shared_ptr<Link> make_nccl_link(std::shared_ptr<Link> host, std::shared_ptr<NcclApi> api) {
  return std::make_shared<NcclLink>(std::move(host), std::move(api));
}

}  // namespace lockstep::comm
