// Direct reduction on devices: comm/algorithms/direct.cpp tells it.
//
//   1. one group of sends and receives brings each owner everyone's operands of its slice
//   2. one kernel adds them in the order of the plan, and multiplies
//   3. one group hands the sums out
//
// All three are queued on one stream, so what a step reads is what the step before has written; a result may lie where
// an operand lay. Short buffers skip step 3: everybody owns everything. Long ones go in stretches, which bounds the memory
// for operands.
#include "comm/nccl/collectives.h"

#include <algorithm>

#include "base/check.h"
#include "comm/algorithms/algorithms.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kShortBytes = std::size_t{32}
                                    << 10;  // below it a second group costs more than the bytes
constexpr std::size_t kStretchBytes = std::size_t{256} << 20;
constexpr std::size_t kRowAlignment = 256;  // of operands in memory

using Direction = Move::Direction;

// A reduction of one stretch: what this worker brings, what it sums, where sums go.
struct Reduction {
  const plan::Reduction& plan;
  std::vector<std::uint8_t> program;
  Fold fold;
};

Move move_of(Direction direction, int peer, const Buffer& data) {
  return {direction, peer, data.data, data.bytes()};
}

// Steps 1 and 2 for the slice of `partials` and `result` that begins at `first`: `send` says what each peer gets.
class Owner {
 public:
  Owner(Communicator& communicator, const Reduction& reduction, std::span<const Buffer> partials)
      : communicator_(communicator), reduction_(reduction), partials_(partials) {}

  // Each peer's slice of what this worker brings.
  void give(int peer, std::size_t first, std::size_t count) {
    for (const Buffer& partial : partials_)
      moves_.push_back(move_of(Direction::kSend, peer, partial.slice(first, count)));
  }

  // Everyone's operands of this worker's slice, and their sum.
  void take_and_sum(Buffer sums, std::size_t first, Lookout& lookout) {
    const auto& operands = reduction_.plan.operands;
    const std::size_t row = (sums.bytes() + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
    const std::size_t remote = operands.size() - partials_.size();
    std::byte* next = remote * row > 0 ? communicator_.scratch(remote * row) : nullptr;
    SumTask task{{}, reduction_.program, sums.data, sums.count, reduction_.fold};
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const int worker = operands[i].worker;
      if (worker == communicator_.rank()) {
        const auto mine = i - static_cast<std::size_t>(reduction_.plan.first_of(worker));
        task.operands.push_back(partials_[mine].slice(first, 0).data);
        continue;
      }
      moves_.push_back({Direction::kRecv, worker, next, sums.bytes()});
      task.operands.push_back(next);
      next += row;
    }
    communicator_.move(moves_, lookout);
    if (sums.count == 0) return;
    if (task.operands.size() == 1 && task.fold.factor == 1) {
      if (task.out != task.operands[0])
        communicator_.copy(task.out, task.operands[0], sums.bytes());
    } else {
      communicator_.sum(task);
    }
  }

 private:
  Communicator& communicator_;
  const Reduction& reduction_;
  std::span<const Buffer> partials_;
  std::vector<Move> moves_;
};

std::vector<int> peers_of(const Communicator& communicator) {
  std::vector<int> peers;
  for (int i = 1; i < communicator.size(); ++i)
    peers.push_back((communicator.rank() + i) % communicator.size());
  return peers;
}

// Every piece from its worker to all.
void hand_out(Communicator& communicator, const Buffer& data, const Cut& cut, Lookout& lookout) {
  std::vector<Move> moves;
  for (const int peer : peers_of(communicator)) {
    moves.push_back(move_of(Direction::kSend, peer, cut.of(data, communicator.rank())));
    moves.push_back(move_of(Direction::kRecv, peer, cut.of(data, peer)));
  }
  communicator.move(moves, lookout);
}

void reduce_stretch(Communicator& communicator, const Reduction& reduction,
                    std::span<const Buffer> partials, const Buffer& result, Lookout& lookout) {
  Owner owner(communicator, reduction, partials);
  const int rank = communicator.rank();
  if (result.bytes() <= kShortBytes || communicator.size() == 1) {
    for (const int peer : peers_of(communicator)) owner.give(peer, 0, result.count);
    return owner.take_and_sum(result, 0, lookout);
  }
  const Cut cut = Cut::even(result.count, communicator.size(), 64 / size_of(result.dtype));
  for (const int peer : peers_of(communicator)) owner.give(peer, cut.first(peer), cut.count(peer));
  owner.take_and_sum(cut.of(result, rank), cut.first(rank), lookout);
  hand_out(communicator, result, cut, lookout);
}

void reduce_direct(Communicator& communicator, const DeviceTask& task, Lookout& lookout) {
  const plan::Reduction plan = plan::plan_reduction(task.shards, communicator.size());
  LOCKSTEP_CHECK(static_cast<int>(task.partials.size()) == plan.count_of(communicator.rank()),
                 "a worker brings the partials that the plan gives it");
  const Reduction reduction{plan, tree_program(plan), task.fold};
  const std::size_t stretch = kStretchBytes / size_of(task.result.dtype);
  for (std::size_t first = 0; first < task.result.count; first += stretch) {
    const std::size_t count = std::min(stretch, task.result.count - first);
    std::vector<Buffer> partials;
    for (const Buffer& partial : task.partials) partials.push_back(partial.slice(first, count));
    reduce_stretch(communicator, reduction, partials, task.result.slice(first, count), lookout);
  }
}

void reduce_scatter(Communicator& communicator, const DeviceTask& task, Lookout& lookout) {
  const plan::Reduction plan = plan::plan_reduction(communicator.size(), communicator.size());
  const Reduction reduction{plan, tree_program(plan), task.fold};
  const Cut cut = Cut::of(task.counts);
  const int rank = communicator.rank();
  Owner owner(communicator, reduction, task.partials);
  for (const int peer : peers_of(communicator)) owner.give(peer, cut.first(peer), cut.count(peer));
  owner.take_and_sum(cut.of(task.result, rank), cut.first(rank), lookout);
}

// The library's own, and the factor after it.
void reduce_native(Communicator& communicator, const DeviceTask& task, Lookout& lookout) {
  const Buffer& result = task.result;
  if (result.count == 0) return;
  communicator.copy(result.data, task.partials[0].data, result.bytes());
  communicator.all_reduce(result, task.fold.op, lookout);
  if (task.fold.factor == 1) return;
  communicator.sum({{result.data}, {0}, result.data, result.count, task.fold});
}

}  // namespace

void queue_collective(Communicator& communicator, const DeviceTask& task, Lookout& lookout) {
  switch (task.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
      if (task.algorithm == Algorithm::kNative) return reduce_native(communicator, task, lookout);
      return reduce_direct(communicator, task, lookout);
    case Kind::kReduceScatter:
      return reduce_scatter(communicator, task, lookout);
    case Kind::kAllGather:
      return hand_out(communicator, task.result, Cut::of(task.counts), lookout);
    case Kind::kBroadcast:
      if (task.result.count > 0) communicator.broadcast(task.result, task.root, lookout);
      return;
    case Kind::kBarrier:
    case Kind::kMessage:
      break;
  }
  LOCKSTEP_CHECK(false, "barriers and messages are the host's");
}

}  // namespace lockstep::comm
