// The collectives of a channel on memory of a device. Their headers are those of the collectives on
// memory of the CPU; their algorithms are not (comm/nccl/collectives.cpp).
#pragma once

#include <lockstep/comm.h>

#include <memory>
#include <optional>
#include <vector>

#include "comm/algorithms/algorithms.h"
#include "comm/channel.h"
#include "comm/core/device.h"

namespace lockstep::comm {

// Threads:   as its channel.
// Blocking:  never.
// Failure:   as Channel::device_collective.
// Ownership: borrows the channel; memory is borrowed until the Work completes.
class DeviceCollectives {
 public:
  // Nothing for memory of the CPU. Call Channel::require_usable before it.
  static std::optional<DeviceCollectives> of(Channel& channel, const Buffer& data);

  Work all_reduce(const Buffer& data, ReduceRule rule, Algorithm asked);
  // Of several parts.
  Work all_reduce(const Spread& pieces, ReduceRule rule, Algorithm asked);
  Work reduce(std::vector<Spread> partials, int shards, const Buffer& result, ReduceRule rule,
              Algorithm asked);
  Work reduce_scatter(const Buffer& data, const Cut& cut, std::uint32_t digest_of_cut,
                      ReduceRule rule);
  Work all_gather(const Buffer& data, const Cut& cut, std::uint32_t digest_of_cut);
  Work all_to_all(const Buffer& data, const Buffer& result, const PairSlices& slices,
                  std::uint32_t digest_of_counts);
  Work broadcast(const Buffer& data, int root);

 private:
  explicit DeviceCollectives(Channel& channel) : channel_(channel) {}

  Channel& channel_;
};

// Throws BadInput for memory of a device: messages carry memory of the CPU.
void require_on_cpu(const Buffer& data);

// Throws BadInput for memory of a device that the channel's engine cannot use.
void require_device_of(Channel& channel, const Buffer& data);

// Throws BadInput if the engine has no memory of that device.
std::shared_ptr<DeviceArena> make_device_arena(Channel& channel, Device device, std::size_t bytes);

}  // namespace lockstep::comm
