#include "comm/channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "comm/core/message_board.h"
#include "comm/device_collectives.h"

namespace lockstep::comm {

Channel::Channel(Group group)
    : group_(std::move(group)), engine_(group_.link->engine()), messages_(group_) {
  group_.find_hosts();
}

// The threads of the queues end only when their operations have ended. Nobody will wait for
// operations that are left, so ending the link ends them.
Channel::~Channel() {
  if (collectives_.is_copy() || (collectives_.idle() && messages_.idle() &&
                                 (device_.made() == nullptr || device_.made()->idle())))
    return;
  const int rank = group_.link->rank();
  group_.link->fail({ErrorKind::kPeerLost,
                     {rank},
                     fmt::format("rank {} left in the middle of an operation", rank)});
}

std::shared_ptr<Channel> Channel::of_world(std::shared_ptr<Link> link, const CommOptions& options) {
  Group group;
  group.members.resize(link->size());
  std::iota(group.members.begin(), group.members.end(), 0);
  group.rank = link->rank();
  group.timeout = options.timeout;
  group.link = std::move(link);
  return std::make_shared<Channel>(std::move(group));
}

std::shared_ptr<Exchange> Channel::exchange(const Header& header) {
  Setting setting = group_.setting(Group::Lane::kCollectives, scratch_);
  setting.board = board_for(header, setting.greetings);
  if (header.algorithm == Algorithm::kTwoLevels) {
    setting.neighbours = group_.neighbours;
    setting.host_board = boards_.on_host.get([this] {
      return make_board(base::mix64(group_.id ^ (std::uint64_t{4} << 32)), group_.neighbours);
    });
  }
  return std::make_shared<Exchange>(setting, header, Deadline::after(group_.timeout));
}

Board* Channel::board_for(const Header& header, Slot greetings) {
  Board* const all = boards_.all.get([this] { return make_board(group_.id, group_.members); });
  if (all != nullptr || !travels_on_cards(header, group_.size())) return all;
  return boards_.by_messages.get([&]() -> std::unique_ptr<Board> {
    if (!group_.link->patience_in_call()) return nullptr;
    return std::make_unique<MessageBoard>(*group_.link, group_.members, greetings);
  });
}

std::unique_ptr<Board> Channel::make_board(std::uint64_t id, std::span<const int> members) const {
  try {
    return group_.link->make_board(id, members);
  } catch (const Error& error) {
    group_.link->fail(failure_from(error));
    throw;
  }
}

// On a board an operation can begin in the call, if no operation before it is left.
std::shared_ptr<Exchange> Channel::begin(const Header& header, Opening opening) {
  if (opening.card == Opening::Card::kNone || !collectives_.idle()) return nullptr;
  if (boards_.all.missing() &&
      (boards_.by_messages.missing() || !travels_on_cards(header, group_.size())))
    return nullptr;
  if (boards_.all.made() != nullptr) boards_.all.made()->prepare(opening.bytes());
  auto begun = exchange(header);
  if (!begun->has_board()) return nullptr;
  if (opening.card == Opening::Card::kData) {
    begun->begin(opening.buffers);
  } else {
    begun->show(opening.buffers);
  }
  return begun;
}

// If all peers are there already, or come within a moment, the operation runs here, and no thread
// need be woken for it. The same for its last round. Nothing here waits for a peer: if some buffer
// is not in shared memory, messages must do the work, and they would wait.
Channel::Left Channel::run_at_once(Exchange& begun, Opening opening,
                                   const std::function<void(Exchange&)>& body) {
  if (!begun.all_come_at_once()) return Left::kBody;
  if (opening.card == Opening::Card::kPlaces && !begun.all_share(opening.buffers.size()))
    return Left::kBody;
  try {
    body(begun);
    if (!begun.all_come_at_once()) return Left::kLastRound;
    begun.finish();
    return Left::kNothing;
  } catch (const Error& error) {
    group_.link->fail(failure_from(error));  // so that the last round, and wait(), throw it
    return Left::kLastRound;
  }
}

// An operation that nobody needs stays queued until somebody waits for it.
Work Channel::queue(const Header& header, const What& what, std::function<void(Exchange&)> body,
                    const Begun& begun) {
  auto operation = std::make_shared<Operation>(
      group_.link, fmt::format("{}: {}", what.collective, what.how),
      [this, header, exchange_begun = begun.exchange, body = std::move(body)] {
        const std::shared_ptr<Exchange> here = exchange_begun ? exchange_begun : exchange(header);
        body(*here);
        here->finish();
        return nullptr;
      });
  if (!begun.needed) {
    operation->set_begun({[here = begun.exchange] { return here->all_have_come(); },
                          [here = begun.exchange](Deadline deadline) { here->limit(deadline); }});
  }
  collectives_.submit(operation);
  return Work(std::move(operation));
}

Buffer Channel::staged(const Buffer& data) const {
  if (!collectives_.idle()) return data;  // an earlier operation may still write to it
  Host* host = group_.link->host();
  if (host == nullptr || !host->staging) return data;
  if (host->memory.locate(data.data, data.bytes(), group_.members).shared()) return data;
  Buffer copy = data;
  copy.data = host->staging->take(data.bytes());
  if (copy.data == nullptr) return data;
  std::memcpy(copy.data, data.data, data.bytes());
  return copy;
}

void Channel::unstage(const Buffer& copy, const Buffer& data) const {
  std::memcpy(data.data, copy.data, data.bytes());
  group_.link->host()->staging->give_back();
}

void Channel::require_on_host(std::span<const Buffer> buffers) const {
  for (const Buffer& buffer : buffers) {
    const SharedMemory& memory = group_.link->host()->memory;
    if (memory.locate(buffer.data, buffer.bytes(), group_.neighbours).shared()) continue;
    throw BadInput(
        "two-levels reduces memory that the workers of a host share: take it from "
        "share_on_host()");
  }
}

DeviceGroup* Channel::device() {
  return device_.get(
      [this] { return group_.link->make_device_group(group_.members, group_.timeout); });
}

// The workers meet before anything is queued on a device. A device cannot compare headers: if one
// worker did something else, the devices of the others would wait for ever.
Work Channel::device_collective(Header header, What what, DeviceTask task) {
  require_alive();
  auto point = device_.made()->mark(task);
  header.device = DeviceKind::kCuda;
  header.sequence = sequence_++;
  header.call = call_;
  auto operation =
      std::make_shared<Operation>(group_.link, fmt::format("{}: {}", what.collective, what.how),
                                  [this, header, task = std::move(task), point = std::move(point)] {
                                    const std::shared_ptr<Exchange> here = exchange(header);
                                    here->meet(here->peers());
                                    here->finish();
                                    return device_.made()->start(*here, task, *point);
                                  });
  // A worker that is alone waits for nobody, so a thread would gain nothing.
  if (group_.size() == 1 && collectives_.idle()) {
    operation->run();
  } else {
    or_end(*group_.link, [&] { collectives_.submit(operation); });
  }
  return Work(std::move(operation));
}

std::shared_ptr<Channel> Channel::channel(std::uint32_t id) {
  require_alive();
  if (!channels_.insert(id).second) {
    throw BadInput(
        fmt::format("channel {} was already taken from this Comm; take each id once", id));
  }
  Group group = group_;
  group.id = base::mix64(group_.id ^ base::mix64((std::uint64_t{1} << 32) + id));
  return std::make_shared<Channel>(std::move(group));
}

std::shared_ptr<Channel> Channel::split(std::vector<int> ranks) {
  require_alive();
  for (const int rank : ranks) require_rank(rank, "a member of a split");
  if (std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size()) {
    throw BadInput("a split names each rank once");
  }
  const auto self = std::find(ranks.begin(), ranks.end(), group_.rank);
  if (self == ranks.end()) {
    throw BadInput(fmt::format("rank {} is not in the list of the split; only its members call it",
                               group_.rank));
  }
  Group group = group_;
  group.rank = static_cast<int>(self - ranks.begin());
  group.id = base::mix64(group_.id ^ base::mix64((std::uint64_t{2} << 32) + splits_[ranks]++));
  group.members.clear();
  for (const int rank : ranks) {
    group.members.push_back(group_.members[rank]);
    group.id = base::mix64(group.id + static_cast<std::uint64_t>(group_.members[rank]));
  }
  return std::make_shared<Channel>(std::move(group));
}

std::uint64_t Channel::next_arena() {
  return base::mix64(group_.id ^ base::mix64((std::uint64_t{3} << 32) + arenas_++)) | 1;
}

void Channel::require_alive() const {
  if (const auto failure = group_.link->failure()) raise(*failure);
}

void Channel::require_usable(const Buffer& data) {
  if (data.count > 0 && data.data == nullptr) {
    throw BadInput(fmt::format("a buffer of {} elements has no memory", data.count));
  }
  if (size_of(data.dtype) == 0) throw BadInput("a buffer has no known dtype");
  require_device_of(*this, data);
}

void Channel::require_rank(int rank, const char* role) const {
  if (rank < 0 || rank >= group_.size()) {
    throw BadInput(
        fmt::format("rank {} cannot be {}: ranks are 0 to {}", rank, role, group_.size() - 1));
  }
}

}  // namespace lockstep::comm
