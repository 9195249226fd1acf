#include "comm/shm/host_link.h"

#include <fmt/format.h>
#include <lockstep/arena.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "comm/arena/hand_over.h"
#include "comm/arena/offer.h"
#include "comm/core/passing_link.h"
#include "comm/core/said_by_all.h"
#include "comm/shm/shm_board.h"

namespace lockstep::comm {
namespace {

// Collectives of several hosts run beside backward, and take as long as a network does: a waiter
// that does not sleep would only take the core from those who compute.
constexpr Patience kSoonAsleep{20, {}};
constexpr std::chrono::milliseconds kLookEvery{5};

// The numbers of all workers' hosts, in the order of their first workers.
std::vector<int> hosts_of_all(Bootstrap& bootstrap, const std::string& own, Deadline deadline) {
  std::map<std::string, int> known;
  std::vector<int> numbers;
  for (const std::string& name : said_by_all(bootstrap, "hosts/name", own, deadline)) {
    const auto next = static_cast<int>(known.size());
    numbers.push_back(known.emplace(name, next).first->second);
  }
  return numbers;
}

// Whether two levels would gain anything.
bool worth_it(const std::vector<int>& hosts) {
  const auto count = static_cast<std::size_t>(*std::max_element(hosts.begin(), hosts.end())) + 1;
  return count > 1 && count < hosts.size();
}

// The segments of the workers of this host, by rank of the link.
struct Neighbours {
  std::vector<int> hosts;
  std::vector<Segment> own_and_others;
  std::vector<const Segment*> by_rank;
};

// Itself, too.
std::vector<int> neighbours_of(int rank, const std::vector<int>& hosts) {
  std::vector<int> ranks;
  for (int other = 0; other < static_cast<int>(hosts.size()); ++other) {
    if (hosts[static_cast<std::size_t>(other)] == hosts[static_cast<std::size_t>(rank)])
      ranks.push_back(other);
  }
  return ranks;
}

Arena empty_segment() {
  Arena arena = Arena::create(Segment::bytes_for(1, 0));
  new (arena.data()) SegmentHead{};
  return arena;
}

Neighbours segments_of(int rank, std::vector<int> hosts, std::vector<std::optional<Arena>> arenas) {
  Neighbours found{std::move(hosts), {}, {}};
  found.own_and_others.reserve(arenas.size());  // their addresses stay
  const int here = found.hosts[static_cast<std::size_t>(rank)];
  for (std::size_t other = 0; other < arenas.size(); ++other) {
    found.by_rank.push_back(nullptr);
    if (found.hosts[other] != here) continue;
    if (!arenas[other] || arenas[other]->size() < Segment::bytes_for(1, 0)) {
      throw Unavailable(fmt::format("rank {} and rank {} say that they are on one host, and cannot "
                                    "share memory: give each "
                                    "host a name of its own, or none",
                                    rank, other),
                        {rank, static_cast<int>(other)});
    }
    found.own_and_others.emplace_back(std::move(*arenas[other]), 1, 0);
    found.by_rank.back() = &found.own_and_others.back();
  }
  return found;
}

class HostLink : public PassingLink {
 public:
  HostLink(std::shared_ptr<Link> network, Neighbours neighbours, const Bootstrap& bootstrap)
      : PassingLink(std::move(network)),
        neighbours_(std::move(neighbours)),
        boards_({neighbours_.by_rank, rank(), kSoonAsleep,
                 [this](int other) { return trouble_with(other); }, kLookEvery}) {
    host_.secret = bootstrap.secret();
    host_.world = bootstrap.name();
  }

  std::span<const int> hosts() const override { return neighbours_.hosts; }
  Host* host() override { return &host_; }
  std::unique_ptr<Board> make_board(std::uint64_t group, std::span<const int> members) override {
    const bool here = std::all_of(members.begin(), members.end(), [&](int member) {
      return neighbours_.by_rank[static_cast<std::size_t>(member)] != nullptr;
    });
    return here ? boards_.make(group, members) : nullptr;
  }

 private:
  std::optional<Failure> trouble_with(int other) const {
    auto own = failure();
    return own ? own : end_of(other);
  }

  Neighbours neighbours_;
  Host host_;
  Boards boards_;
};

}  // namespace

struct HostForming::Meeting {
  Meeting(Bootstrap& bootstrap, const std::vector<int>& hosts, Deadline deadline)
      : mine(empty_segment()),
        hand_over(mine, "hosts/segments", bootstrap, deadline,
                  {[this] { look(); }, neighbours_of(bootstrap.rank(), hosts)}) {}

  // That a neighbour has gone shows at its socket. One that is done may have left already.
  void look() const {
    if (!network) return;
    if (const auto failure = network->failure()) raise(*failure);
  }

  Arena mine;
  std::shared_ptr<Link> network;  // once it is made
  HandOver hand_over;
};

HostForming::HostForming(Bootstrap& bootstrap, const std::string& name, Deadline deadline)
    : bootstrap_(bootstrap), hosts_(hosts_of_all(bootstrap, host_name(name), deadline)) {
  if (worth_it(hosts_)) meeting_ = std::make_unique<Meeting>(bootstrap, hosts_, deadline);
}
HostForming::~HostForming() = default;

std::shared_ptr<Link> HostForming::finish(std::shared_ptr<Link> network) {
  if (!meeting_) return network;
  meeting_->network = network;
  const int rank = bootstrap_.rank();
  try {
    auto arenas = meeting_->hand_over.run();
    arenas[static_cast<std::size_t>(rank)] = std::move(meeting_->mine);
    return std::make_shared<HostLink>(network, segments_of(rank, hosts_, std::move(arenas)),
                                      bootstrap_);
  } catch (const std::exception& error) {
    const Failure failure = failure_of(rank, error);
    network->fail(failure);  // the others have a link to this worker: they hear why it ends
    raise(failure);
  }
}

}  // namespace lockstep::comm
