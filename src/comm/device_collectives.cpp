#include "comm/device_collectives.h"

#include <fmt/format.h>

#include <utility>

#include "comm/algorithms/algorithms.h"
#include "comm/core/header.h"

namespace lockstep::comm {
namespace {

bool is_on_cpu(Device device) {
  return device.kind == DeviceKind::kCpu;
}

// Devices run `direct`, which is bit-stable for every world, and `native`, which their library has.
Choice choose_for_device(Algorithm asked, int shards, int workers) {
  if (asked == Algorithm::kAutomatic || asked == Algorithm::kDirect || workers == 1)
    return {Algorithm::kDirect, "direct"};
  if (asked != Algorithm::kNative) {
    return {Algorithm::kDirect,
            fmt::format("direct (asked for {}: GPUs run direct or native)", name(asked))};
  }
  if (shards == workers) return {asked, name(asked)};
  return {Algorithm::kDirect, "direct (asked for native: it takes one partial per worker)"};
}

DeviceTask reduction_of(Kind kind, Algorithm algorithm, ReduceRule rule,
                        std::vector<Spread> partials, int shards, const Spread& result) {
  DeviceTask task;
  task.kind = kind;
  task.algorithm = algorithm;
  task.fold = rule.fold(result.dtype());
  task.partials = std::move(partials);
  task.shards = shards;
  task.result = result;
  return task;
}

}  // namespace

std::optional<DeviceCollectives> DeviceCollectives::of(Channel& channel, const Buffer& data) {
  if (is_on_cpu(data.device)) return std::nullopt;
  return DeviceCollectives(channel);
}

Work DeviceCollectives::all_reduce(const Buffer& data, ReduceRule rule, Algorithm asked) {
  const int workers = channel_.group().size();
  const Choice choice = choose_for_device(asked, workers, workers);
  Header header = header_of(Kind::kAllReduce, data);
  header.op = rule.op;
  header.algorithm = choice.algorithm;
  return channel_.device_collective(
      header, {"all_reduce", choice.how},
      reduction_of(Kind::kAllReduce, choice.algorithm, rule, {data}, workers, data));
}

Work DeviceCollectives::all_reduce(const Spread& pieces, ReduceRule rule, Algorithm asked) {
  const int workers = channel_.group().size();
  const Choice choice = choose_for_device(asked, workers, workers);
  std::vector<std::size_t> counts;
  for (const Buffer& piece : pieces.parts()) counts.push_back(piece.count);
  Header header = header_of(Kind::kAllReduce, pieces.parts().front());
  header.op = rule.op;
  header.algorithm = choice.algorithm;
  header.count = pieces.count();
  header.detail = digest(counts);
  return channel_.device_collective(
      header, {"all_reduce", choice.how},
      reduction_of(Kind::kAllReduce, choice.algorithm, rule, {pieces}, workers, pieces));
}

Work DeviceCollectives::reduce(std::vector<Spread> partials, int shards, const Buffer& result,
                               ReduceRule rule, Algorithm asked) {
  const Choice choice = choose_for_device(asked, shards, channel_.group().size());
  Header header = header_of(Kind::kReduce, result);
  header.op = rule.op;
  header.algorithm = choice.algorithm;
  header.detail = static_cast<std::uint32_t>(shards);
  return channel_.device_collective(
      header, {"reduce", choice.how},
      reduction_of(Kind::kReduce, choice.algorithm, rule, std::move(partials), shards, result));
}

Work DeviceCollectives::reduce_scatter(const Buffer& data, const Cut& cut,
                                       std::uint32_t digest_of_cut, ReduceRule rule) {
  Header header = header_of(Kind::kReduceScatter, data);
  header.op = rule.op;
  header.detail = digest_of_cut;
  auto task = reduction_of(Kind::kReduceScatter, Algorithm::kDirect, rule, {data},
                           channel_.group().size(), data);
  task.counts = cut.counts();
  return channel_.device_collective(header, {"reduce_scatter", "direct"}, std::move(task));
}

Work DeviceCollectives::all_gather(const Buffer& data, const Cut& cut,
                                   std::uint32_t digest_of_cut) {
  Header header = header_of(Kind::kAllGather, data);
  header.detail = digest_of_cut;
  DeviceTask task;
  task.kind = Kind::kAllGather;
  task.result = data;
  task.counts = cut.counts();
  return channel_.device_collective(header, {"all_gather", "direct"}, std::move(task));
}

Work DeviceCollectives::all_to_all(const Buffer& data, const Buffer& result,
                                   const PairSlices& slices, std::uint32_t digest_of_counts) {
  Header header = header_of(Kind::kAllToAll, data);
  header.count = slices.total();
  header.detail = digest_of_counts;
  DeviceTask task;
  task.kind = Kind::kAllToAll;
  task.partials = {data};
  task.result = result;
  task.counts = slices.counts();
  return channel_.device_collective(header, {"all_to_all", "direct"}, std::move(task));
}

Work DeviceCollectives::broadcast(const Buffer& data, int root) {
  Header header = header_of(Kind::kBroadcast, data);
  header.detail = static_cast<std::uint32_t>(root);
  DeviceTask task;
  task.kind = Kind::kBroadcast;
  task.result = data;
  task.root = root;
  return channel_.device_collective(header, {"broadcast", "native"}, std::move(task));
}

void require_on_cpu(const Buffer& data) {
  if (is_on_cpu(data.device)) return;
  throw BadInput("messages carry memory of the CPU; use a collective for memory of a device");
}

void require_device_of(Channel& channel, const Buffer& data) {
  if (is_on_cpu(data.device)) return;
  if (channel.device() == nullptr) {
    throw BadInput(fmt::format("the {} engine moves memory of the CPU only", channel.engine()));
  }
  channel.device()->require_usable(data);
}

std::shared_ptr<DeviceArena> make_device_arena(Channel& channel, Device device, std::size_t bytes) {
  if (is_on_cpu(device) || channel.device() == nullptr) {
    throw BadInput(
        fmt::format("the {} engine has no memory of {}", channel.engine(), device.text()));
  }
  return channel.device()->make_arena(device, bytes);
}

}  // namespace lockstep::comm
