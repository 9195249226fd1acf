#include <fmt/format.h>
#include <lockstep/comm.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>

#include "comm/algorithms/algorithms.h"
#include "comm/channel.h"
#include "comm/core/header.h"
#include "comm/device_collectives.h"
#include "comm/group.h"
#include "plan/tree.h"

namespace lockstep {
namespace {

using comm::Cut;
using comm::DeviceCollectives;
using comm::digest;
using comm::Exchange;
using comm::Header;
using comm::header_of;
using comm::Kind;
using comm::PairSlices;

comm::ReduceRule rule_of(const ReduceOptions& options, const Buffer& data) {
  const bool floating =
      data.dtype == DType::kFloat32 || data.dtype == DType::kFloat64 || flat::is_half(data.dtype);
  if (options.factor != 1 && (!floating || options.op != ReduceOp::kSum)) {
    throw BadInput(
        fmt::format("a factor multiplies sums of floating-point elements, not the {} of {}",
                    name(options.op), name(data.dtype)));
  }
  return {options.op, options.factor};
}

// Sums of half types must not be rounded on a host: they go in one level.
comm::Choice choose(Algorithm asked, int shards, const comm::Group& group, DType dtype) {
  if (asked == Algorithm::kTwoLevels && flat::is_half(dtype))
    return {Algorithm::kDirect, "direct (asked for two-levels: half types go in one level)"};
  return comm::choose(asked, shards, {group.size(), !group.hosts.empty()});
}

void run_all_reduce(Exchange& exchange, Algorithm algorithm, Buffer data, comm::ReduceRule rule) {
  switch (algorithm) {
    case Algorithm::kHalvingDoubling:
      return comm::halving_doubling_all_reduce(exchange, data, rule);
    case Algorithm::kRing:
      return comm::ring_all_reduce(exchange, data, rule);
    case Algorithm::kTree:
      return comm::tree_all_reduce(exchange, data, rule);
    case Algorithm::kTwoLevels:  // has partials of its own
    case Algorithm::kNative:     // of devices only
    case Algorithm::kDirect:
    case Algorithm::kAutomatic:
      break;
  }
  comm::direct_reduce(exchange, plan::plan_of_one_each(exchange.size()), {&data, 1}, data, rule);
}

// A worker does its part of a collective of up to so many bytes in the call, if all have come: that
// takes no longer than waking a thread and coming back from it. Longer ones leave the caller free.
constexpr std::size_t kBytesInTheCall = std::size_t{1} << 20;

// What a collective shows in the call: the data that others need from this worker, if every
// worker's fit on a card, or where its buffers are.
comm::Opening opening(std::size_t bytes_on_card, std::span<const Buffer> data,
                      std::span<const Buffer> buffers) {
  using Card = comm::Opening::Card;
  if (bytes_on_card <= comm::kCardBytes) return {Card::kData, data};
  if (buffers[0].bytes() <= kBytesInTheCall) return {Card::kPlaces, buffers};
  return {};
}

Cut cut_of(const std::vector<std::size_t>& counts, const Buffer& data, int workers) {
  if (counts.empty()) return Cut::even(data.count, workers);
  std::size_t left = data.count;
  bool fits = counts.size() == static_cast<std::size_t>(workers);
  for (const std::size_t count : counts) {
    fits = fits && count <= left;
    left -= std::min(count, left);
  }
  if (!fits || left != 0) {
    throw BadInput(fmt::format(
        "{} counts cannot cut {} elements for {} workers: they must be one for each, and "
        "add up to the whole",
        counts.size(), data.count, workers));
  }
  return Cut::of(counts);
}

// Without counts, equal slices.
PairSlices slices_of(std::vector<std::size_t> counts, const Buffer& data, const Buffer& result,
                     const comm::Group& group) {
  const auto workers = static_cast<std::size_t>(group.size());
  if (counts.empty()) {
    if (data.count % workers != 0)
      throw BadInput(fmt::format(
          "{} elements cannot be cut into {} equal slices for an all_to_all: pass counts",
          data.count, workers));
    counts.assign(workers * workers, data.count / workers);
  }
  if (counts.size() != workers * workers) {
    throw BadInput(fmt::format(
        "{} counts for an all_to_all of {} workers: pass one for each pair of workers, or none",
        counts.size(), workers));
  }
  std::size_t left = std::numeric_limits<std::size_t>::max() / size_of(data.dtype);
  for (const std::size_t count : counts) {
    if (count > left) throw BadInput("the counts of an all_to_all are more than any memory holds");
    left -= count;
  }
  PairSlices slices(std::move(counts), group.size());
  const std::size_t outgoing = slices.data_of(group.rank).total();
  const std::size_t incoming = slices.result_of(group.rank).total();
  if (outgoing != data.count || incoming != result.count) {
    throw BadInput(
        fmt::format("an all_to_all takes {} elements from rank {} and brings it {}, but its data "
                    "has {} and its "
                    "result {}",
                    outgoing, group.rank, incoming, data.count, result.count));
  }
  return slices;
}

void require_apart(const Buffer& data, const Buffer& result) {
  if (data.dtype != result.dtype || !(data.device == result.device))
    throw BadInput("data and result of an all_to_all must have one dtype and one device");
  const auto begins_in = [](const Buffer& one, const Buffer& other) {
    const std::less<const void*> before;
    return !before(one.data, other.data) && before(one.data, other.slice(other.count, 0).data);
  };
  if (data.count > 0 && result.count > 0 && (begins_in(data, result) || begins_in(result, data)))
    throw BadInput("data and result of an all_to_all must not overlap");
}

// This worker speaks for workers that have ended: their slices of the same length get its values.
void say_for_all(const Cut& cut, const Buffer& data, const Buffer& own) {
  for (int worker = 0; worker < static_cast<int>(cut.counts().size()); ++worker) {
    const Buffer slice = cut.of(data, worker);
    if (slice.data != own.data && slice.count == own.count && own.count > 0)
      std::memcpy(slice.data, own.data, own.bytes());
  }
}

}  // namespace

Comm::Comm(std::shared_ptr<comm::Channel> channel) : channel_(std::move(channel)) {}
Comm::Comm(Comm&&) noexcept = default;
Comm& Comm::operator=(Comm&&) noexcept = default;
Comm::~Comm() = default;

int Comm::rank() const {
  return channel_->group().rank;
}

int Comm::size() const {
  return channel_->group().size();
}

std::chrono::milliseconds Comm::timeout() const {
  return channel_->group().timeout;
}
const std::vector<int>& Comm::hosts() const {
  return channel_->group().hosts;
}

const std::string& Comm::engine() const {
  return channel_->engine();
}

Work Comm::send(int to, Buffer data) {
  channel_->require_alive();
  comm::require_on_cpu(data);
  channel_->require_usable(data);
  channel_->require_rank(to, "the receiver of a message");
  if (to == rank()) throw BadInput("a worker cannot send a message to itself");
  return Work(channel_->messages().send(to, data));
}

Work Comm::recv(int from, Buffer data) {
  channel_->require_alive();
  comm::require_on_cpu(data);
  channel_->require_usable(data);
  channel_->require_rank(from, "the sender of a message");
  if (from == rank()) throw BadInput("a worker cannot receive a message from itself");
  return Work(channel_->messages().recv(from, data));
}

bool Comm::try_recv(int from, Buffer data) {
  channel_->require_alive();
  comm::require_on_cpu(data);
  channel_->require_usable(data);
  channel_->require_rank(from, "the sender of a message");
  if (from == rank()) throw BadInput("a worker cannot receive a message from itself");
  return channel_->messages().try_recv(from, data);
}

Work Comm::all_reduce(Buffer data, ReduceOptions options) {
  channel_->require_usable(data);
  const comm::ReduceRule rule = rule_of(options, data);
  if (auto device = DeviceCollectives::of(*channel_, data))
    return device->all_reduce(data, rule, options.algorithm);
  if (channel_->group().meets_nobody()) {
    flat::scale(data.dtype, rule.factor, data.data, data.data, data.count);
    return {};
  }
  const comm::Choice choice = choose(options.algorithm, size(), channel_->group(), data.dtype);
  if (choice.algorithm == Algorithm::kTwoLevels) return reduce({data}, size(), data, options);
  Header header = header_of(Kind::kAllReduce, data);
  header.op = options.op;
  header.algorithm = choice.algorithm;
  const bool direct =
      choice.algorithm == Algorithm::kDirect && choice.how == name(choice.algorithm);
  const bool on_card = data.bytes() <= comm::kCardBytes;
  const Buffer here = direct && !on_card ? channel_->staged(data) : data;
  const std::array<Buffer, 2> operand_and_result{here, here};
  return channel_->collective(
      header, {"all_reduce", choice.how},
      [channel = channel_.get(), data, here, rule,
       algorithm = choice.algorithm](Exchange& exchange) {
        if (here.data != data.data)
          exchange.at_end([channel, data, here] { channel->unstage(here, data); });
        run_all_reduce(exchange, algorithm, here, rule);
      },
      direct ? opening(here.bytes(), {&here, 1}, operand_and_result) : comm::Opening{});
}

Work Comm::all_reduce(std::vector<Buffer> parts, ReduceOptions options) {
  if (parts.empty()) return all_reduce(Buffer{}, options);
  const comm::Spread spread(std::move(parts));
  const Buffer& first = spread.parts().front();
  for (const Buffer& part : spread.parts()) {
    channel_->require_usable(part);
    if (part.dtype != first.dtype || !(part.device == first.device))
      throw BadInput("the parts of a reduction must have one dtype and one device");
  }
  auto device = DeviceCollectives::of(*channel_, first);
  if (!device)
    throw BadInput("parts that lie apart are reduced on a device: pass one buffer of the CPU");
  return device->all_reduce(spread, rule_of(options, first), options.algorithm);
}

Work Comm::reduce(std::vector<Buffer> partials, int shards, Buffer result, ReduceOptions options) {
  channel_->require_usable(result);
  if (shards < size()) {
    throw BadInput(fmt::format("{} shards are too few for {} workers: each hosts at least one",
                               shards, size()));
  }
  const auto held = plan::held_partials(plan::hosted_shards(rank(), size(), shards), shards);
  if (partials.size() != held.size()) {
    throw BadInput(fmt::format("rank {} holds {} partials of {} shards, not {}", rank(),
                               held.size(), shards, partials.size()));
  }
  for (const Buffer& partial : partials) {
    channel_->require_usable(partial);
    if (partial.count != result.count || partial.dtype != result.dtype ||
        !(partial.device == result.device)) {
      throw BadInput("partials and result must have one count, one dtype and one device");
    }
  }
  const comm::ReduceRule rule = rule_of(options, result);
  if (auto device = DeviceCollectives::of(*channel_, result))
    return device->reduce({partials.begin(), partials.end()}, shards, result, rule,
                          options.algorithm);
  const comm::Choice choice = choose(options.algorithm, shards, channel_->group(), result.dtype);
  Header header = header_of(Kind::kReduce, result);
  header.op = options.op;
  header.algorithm = choice.algorithm;
  header.detail = static_cast<std::uint32_t>(shards);
  const bool two_levels = choice.algorithm == Algorithm::kTwoLevels;
  if (two_levels) {
    channel_->require_on_host(partials);
    channel_->require_on_host({&result, 1});
  }
  const auto body = [partials = std::move(partials), shards, result, rule,
                     hosts = two_levels ? channel_->group().hosts : std::vector<int>(),
                     algorithm = choice.algorithm](Exchange& exchange) {
    if (algorithm == Algorithm::kDirect || algorithm == Algorithm::kTwoLevels) {
      const auto plan = plan::plan_reduction(shards, exchange.size());
      if (algorithm == Algorithm::kDirect)
        return comm::direct_reduce(exchange, plan, partials, result, rule);
      return comm::two_level_reduce(exchange, plan::plan_two_levels(plan, hosts), partials, result,
                                    rule);
    }
    if (result.data != partials[0].data && result.count > 0) {
      std::memcpy(result.data, partials[0].data, result.bytes());
    }
    run_all_reduce(exchange, algorithm, result, rule);
  };
  return channel_->collective(header, {"reduce", choice.how}, body);
}

Algorithm Comm::runs(Algorithm asked, int shards) const {
  return choose(asked, shards, channel_->group(), DType::kFloat32).algorithm;
}

Work Comm::reduce_scatter(Buffer data, const std::vector<std::size_t>& counts,
                          ReduceOptions options) {
  channel_->require_usable(data);
  if (options.algorithm != Algorithm::kAutomatic && options.algorithm != Algorithm::kDirect) {
    throw BadInput(fmt::format("reduce_scatter cannot run as {}; ask for {} or {}",
                               name(options.algorithm), name(Algorithm::kAutomatic),
                               name(Algorithm::kDirect)));
  }
  const Cut cut = cut_of(counts, data, size());
  const comm::ReduceRule rule = rule_of(options, data);
  if (auto device = DeviceCollectives::of(*channel_, data))
    return device->reduce_scatter(data, cut, digest(counts), rule);
  if (channel_->group().meets_nobody()) {
    flat::scale(data.dtype, rule.factor, data.data, data.data, data.count);
    return {};
  }
  Header header = header_of(Kind::kReduceScatter, data);
  header.op = options.op;
  header.detail = digest(counts);
  return channel_->collective(
      header, {"reduce_scatter", "direct"},
      [data, cut, rule](Exchange& exchange) {
        comm::direct_reduce_scatter(exchange, data, cut, rule);
      },
      opening(data.bytes(), {&data, 1}, {&data, 1}));
}

Work Comm::all_gather(Buffer data, const std::vector<std::size_t>& counts) {
  channel_->require_usable(data);
  const Cut cut = cut_of(counts, data, size());
  const Buffer mine = cut.of(data, rank());
  if (channel_->group().meets_nobody()) {
    say_for_all(cut, data, mine);
    return {};
  }
  if (auto device = DeviceCollectives::of(*channel_, data))
    return device->all_gather(data, cut, digest(counts));
  Header header = header_of(Kind::kAllGather, data);
  header.detail = digest(counts);
  return channel_->collective(
      header, {"all_gather", "direct"},
      [data, cut](Exchange& exchange) { comm::direct_all_gather(exchange, data, cut); },
      opening(cut.longest() * size_of(data.dtype), {&mine, 1}, {&data, 1}));
}

Work Comm::all_to_all(Buffer data, Buffer result, const std::vector<std::size_t>& counts) {
  channel_->require_usable(data);
  channel_->require_usable(result);
  require_apart(data, result);
  const PairSlices slices = slices_of(counts, data, result, channel_->group());
  if (auto device = DeviceCollectives::of(*channel_, data))
    return device->all_to_all(data, result, slices, digest(counts));
  if (channel_->group().meets_nobody()) {
    say_for_all(slices.result_of(rank()), result, slices.data_of(rank()).of(data, rank()));
    return {};
  }
  Header header = header_of(Kind::kAllToAll, data);
  header.count = slices.total();
  header.detail = digest(counts);
  const bool too_long = result.bytes() > kBytesInTheCall;
  return channel_->collective(
      header, {"all_to_all", "direct"},
      [data, result, slices](Exchange& exchange) {
        comm::direct_all_to_all(exchange, data, result, slices);
      },
      too_long ? comm::Opening{}
               : opening(slices.total() * size_of(data.dtype), {&data, 1}, {&data, 1}));
}

Work Comm::broadcast(Buffer data, int root) {
  channel_->require_usable(data);
  channel_->require_rank(root, "the root of a broadcast");
  if (channel_->group().meets_nobody()) return {};
  if (auto device = DeviceCollectives::of(*channel_, data)) return device->broadcast(data, root);
  Header header = header_of(Kind::kBroadcast, data);
  header.detail = static_cast<std::uint32_t>(root);
  return channel_->collective(
      header, {"broadcast", "tree"},
      [data, root](Exchange& exchange) { comm::tree_broadcast(exchange, data, root); },
      opening(data.bytes(), {&data, root == rank() ? 1U : 0U}, {&data, 1}));
}

Work Comm::barrier() {
  if (channel_->group().meets_nobody()) return {};
  return channel_->collective(Header{}, {"barrier", "dissemination"},
                              [](Exchange& exchange) { comm::dissemination_barrier(exchange); },
                              {comm::Opening::Card::kData, {}});
}

std::shared_ptr<SharedArena> Comm::share(std::size_t bytes, Mappings mappings) {
  channel_->require_alive();
  return comm::share(*this, channel_->group(), channel_->next_arena(), {bytes, mappings});
}

std::shared_ptr<SharedArena> Comm::share_on_host(std::size_t bytes) {
  channel_->require_alive();
  return hosts().empty() ? nullptr : on_host().share(bytes);
}

Comm Comm::on_host() {
  const std::vector<int>& all = hosts();
  if (all.empty()) throw BadInput("on_host() is for workers of several hosts that share memory");
  const int own = all[static_cast<std::size_t>(rank())];
  std::vector<int> here;
  for (int rank = 0; rank < size(); ++rank) {
    if (all[static_cast<std::size_t>(rank)] == own) here.push_back(rank);
  }
  return split(std::move(here));
}

std::shared_ptr<DeviceArena> Comm::device_arena(Device device, std::size_t bytes) {
  channel_->require_alive();
  return comm::make_device_arena(*channel_, device, bytes);
}

void Comm::leave(const std::string& why) noexcept {
  comm::Link& link = *channel_->group().link;
  link.fail({ErrorKind::kPeerLost,
             {link.rank()},
             fmt::format("rank {} has left the world: {}", link.rank(), why)});
}

void Comm::leave(const Error& error) noexcept {
  channel_->group().link->fail(comm::failure_from(error));
}

CallName::CallName(Comm& comm, std::string_view call) {
  if (!comm.channel_->call().empty()) return;
  channel_ = comm.channel_;
  channel_->call() = comm::CallText(call);
}
CallName::~CallName() {
  if (channel_) channel_->call() = {};
}

Comm Comm::channel(std::uint32_t id) {
  return Comm(channel_->channel(id));
}

Comm Comm::split(std::vector<int> ranks) {
  return Comm(channel_->split(std::move(ranks)));
}

}  // namespace lockstep
