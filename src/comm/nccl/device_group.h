// The workers of a channel and their devices. They have one communicator, which is formed with the
// first collective.
#pragma once

#include <memory>
#include <vector>

#include "comm/core/device.h"
#include "comm/nccl/communicator.h"
#include "comm/nccl/device_watchdog.h"

namespace lockstep::comm {

// A DeviceGroup over NCCL; its contract is in comm/core/device.h.
class NcclGroup : public DeviceGroup {
 public:
  // A failure ends `link`. `members` are ranks of the link.
  NcclGroup(Link& link, DeviceWatchdog& watch, std::shared_ptr<NcclApi> api,
            std::vector<int> members, std::chrono::milliseconds timeout);
  ~NcclGroup() override;

  void require_usable(const Buffer& data) override;
  std::shared_ptr<DevicePoint> mark(const DeviceTask& task) override;
  std::shared_ptr<DeviceWork> start(Exchange& exchange, const DeviceTask& task,
                                    const DevicePoint& after) override;
  std::shared_ptr<DeviceArena> make_arena(Device device, std::size_t bytes) override;
  bool idle() override;

 private:
  // Sets the device of this worker. The first buffer decides it; a buffer of another device is
  // BadInput.
  void choose(int device);
  Communicator& communicator();
  void form(Exchange& exchange, WaitCheck& check);

  Link& link_;
  DeviceWatchdog& watch_;
  std::shared_ptr<NcclApi> api_;
  std::vector<int> members_;
  std::chrono::milliseconds timeout_;
  int device_ = -1;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace lockstep::comm
