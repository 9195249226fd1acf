// Comm::share.
//
//   1. every worker says how many bytes it wants; all check whether the host has the sum
//   2. each makes its arena, and they exchange descriptors (comm/arena: same user, secret proven)
//   3. when all have everything, the link learns of the arenas: from then on it finds buffers in
//      them
//
// The sum is checked first because a memfd takes memory only when it is touched: each arena alone
// would fit, and a worker would die of a signal later.
#include "comm/group.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "comm/arena/hand_over.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kMostValueBytes = 512;

// A Bootstrap over a Comm. All workers put a value at the same time, so one all-gather exchanges
// them.
class CommBootstrap : public Bootstrap {
 public:
  CommBootstrap(Comm& comm, const Host& host) : comm_(comm), host_(host) {}

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  std::string name() const override { return host_.world; }
  std::string secret() const override { return host_.secret; }

  // A key ends in the rank of the worker that puts it.
  void put(std::string_view key, std::string_view value, Deadline deadline) override {
    const auto length = static_cast<std::uint16_t>(value.size());
    LOCKSTEP_CHECK(value.size() + sizeof length <= kMostValueBytes, "offers are short");
    prefix_ = key.substr(0, key.rfind('/') + 1);
    values_.assign(static_cast<std::size_t>(size()) * kMostValueBytes, 0);
    char* own = values_.data() + static_cast<std::size_t>(rank()) * kMostValueBytes;
    std::memcpy(own, &length, sizeof length);
    std::memcpy(own + sizeof length, value.data(), value.size());
    comm_.all_gather({values_.data(), values_.size(), DType::kUInt8}).wait(deadline);
  }

  std::string get(std::string_view key, Deadline) override {
    for (int rank = 0; rank < size(); ++rank) {
      if (key != prefix_ + std::to_string(rank)) continue;
      const char* value = values_.data() + static_cast<std::size_t>(rank) * kMostValueBytes;
      std::uint16_t length = 0;
      std::memcpy(&length, value, sizeof length);
      return {value + sizeof length,
              std::min<std::size_t>(length, kMostValueBytes - sizeof length)};
    }
    return {};
  }

 private:
  Comm& comm_;
  const Host& host_;
  std::string prefix_;
  std::vector<char> values_;
};

void require_memory(Comm& comm, std::size_t bytes) {
  std::vector<std::int64_t> wanted(static_cast<std::size_t>(comm.size()));
  wanted[static_cast<std::size_t>(comm.rank())] = static_cast<std::int64_t>(bytes);
  comm.all_gather({wanted.data(), wanted.size(), DType::kInt64}).wait();
  const auto sum =
      static_cast<std::size_t>(std::accumulate(wanted.begin(), wanted.end(), std::int64_t{0}));
  const std::size_t available = available_memory_bytes();
  if (sum <= available) return;
  throw Unavailable(fmt::format(
      "{} workers of this host want {} MiB of shared memory, and {} MiB are available: use fewer "
      "workers, a smaller model, or a larger memory limit",
      comm.size(), sum >> 20, available >> 20));
}

// Throws what has ended a member, or the link.
void look_at_members(const Group& group) {
  if (const auto failure = group.link->failure()) raise(*failure);
  for (const int rank : group.members) {
    if (rank == group.link->rank()) continue;
    if (const auto end = group.link->end_of(rank)) raise(*end);
  }
}

std::vector<Arena> exchange_arenas(Comm& comm, const Group& group, const std::string& name,
                                   Arena mine) {
  CommBootstrap bootstrap(comm, *group.link->host());
  const auto look = [&] { look_at_members(group); };
  auto theirs = HandOver(mine, name, bootstrap, Deadline::after(group.timeout), {look}).run();
  theirs[static_cast<std::size_t>(comm.rank())] = std::move(mine);
  std::vector<Arena> arenas;
  for (int rank = 0; rank < comm.size(); ++rank) {
    auto& arena = theirs[static_cast<std::size_t>(rank)];
    if (!arena) throw Unavailable(fmt::format("rank {} is on another host", rank));
    arenas.push_back(std::move(*arena));
  }
  comm.barrier().wait();  // nobody uses the arenas before all workers have them
  return arenas;
}

}  // namespace

std::shared_ptr<SharedArena> share(Comm& comm, const Group& group, std::uint64_t id,
                                   Wanted wanted) {
  const auto make = [&wanted] {
    return wanted.again != nullptr ? Arena::attach(wanted.again->fd(), wanted.again->size())
                                   : Arena::create(wanted.bytes);
  };
  wanted.bytes = std::max<std::size_t>(wanted.bytes, 1);
  std::vector<Arena> arenas;
  Host* host = group.link->host();
  const bool alone = group.meets_nobody();
  if (!alone && (host == nullptr || group.neighbours.size() < group.members.size())) return nullptr;
  try {
    if (alone) {
      for (int rank = 0; rank < comm.size(); ++rank)
        arenas.push_back(rank == comm.rank() ? make() : Arena::create(wanted.bytes));
    } else {
      require_memory(comm, wanted.again != nullptr ? 0 : wanted.bytes);
      arenas = exchange_arenas(comm, group, fmt::format("share/{:016x}", id), make());
    }
    for (Arena& arena : arenas) {
      if (wanted.mappings == Comm::Mappings::kAlsoPrivate) arena.map_privately();
      if (&arena != &arenas[static_cast<std::size_t>(comm.rank())]) arena.close_descriptor();
    }
  } catch (const Error& error) {
    group.link->fail(failure_from(error));
    throw;
  } catch (const std::exception& error) {
    const Failure failure = failure_of(group.link->rank(), error);
    group.link->fail(failure);
    raise(failure);
  }
  auto arena = std::make_shared<SharedArena>(std::move(arenas), comm.rank());
  if (host != nullptr) host->memory.add(id, group.members, arena);
  return arena;
}

}  // namespace lockstep::comm
