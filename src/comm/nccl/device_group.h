// The workers of a channel and their devices: one communicator, made with the first collective.
#pragma once

#include <memory>
#include <vector>

#include "comm/core/device.h"
#include "comm/nccl/communicator.h"
#include "comm/nccl/device_watchdog.h"

namespace lockstep::comm {

class NcclGroup : public DeviceGroup {
 public:
  // `link` is the one that all operations end with; `members` are its ranks.
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
  // The device of this worker: that of the first buffer.
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
