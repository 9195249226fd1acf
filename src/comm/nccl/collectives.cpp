// Direct reduction on devices. comm/algorithms/direct.cpp explains the algorithm.
//
//   1. one group of sends and receives brings each owner the operands of its slice from all workers
//   2. one kernel adds them in the order of the plan, and multiplies
//   3. one group hands the sums out
//
// All three are queued on one stream, so each step reads what the step before has written. A result
// may be in the memory of an operand. Short buffers skip step 3: every worker owns everything. Long
// buffers are reduced in stretches, one after the other, which bounds the memory for operands.
//
// A buffer may consist of several parts. Slices and stretches are those of the whole buffer. Each
// part of a slice has its own send, receive and sum, in the same groups.
#include "comm/nccl/communicator.h"

#include <algorithm>

#include "base/check.h"
#include "comm/algorithms/algorithms.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kShortBytes = std::size_t{32}
                                    << 10;  // below it a second group costs more than the bytes
constexpr std::size_t kStretchBytes = std::size_t{256} << 20;
// NCCL runs a group with too many operations as several groups, one after the other, and each
// worker divides its own group. So one worker may send in its first group what another receives in
// its second, and both would wait for ever.
constexpr std::size_t kStretchParts = 64;
constexpr std::size_t kRowAlignment = 256;  // of operands in memory

using Direction = Move::Direction;

// A reduction of one stretch: what this worker brings, what it sums, where sums go.
struct Reduction {
  const plan::Reduction& plan;
  std::vector<std::uint8_t> program;
  flat::Fold fold;
};

// One move per part. The peer's memory has the same parts.
void add_moves(std::vector<Move>& moves, Direction direction, int peer, const Spread& data) {
  for (const Buffer& part : data.parts())
    moves.push_back({direction, peer, part.data, part.bytes()});
}

std::size_t aligned_bytes(const Buffer& part) {
  return (part.bytes() + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
}

// Steps 1 and 2 of one stretch: give() says what each peer gets, take_and_sum() receives and adds
// this worker's slice.
class Owner {
 public:
  Owner(Communicator& communicator, const Reduction& reduction, std::span<const Spread> partials)
      : communicator_(communicator), reduction_(reduction), partials_(partials) {}

  // Each peer's slice of what this worker brings.
  void give(int peer, std::size_t first, std::size_t count) {
    for (const Spread& partial : partials_)
      add_moves(moves_, Direction::kSend, peer, partial.slice(first, count));
  }

  // Everyone's operands of this worker's slice, and their sum, part by part.
  void take_and_sum(const Spread& sums, std::size_t first, WaitCheck& check) {
    const auto& operands = reduction_.plan.operands;
    std::vector<flat::SumTask> tasks;
    std::size_t row = 0;
    for (const Buffer& part : sums.parts()) {
      tasks.push_back({{}, reduction_.program, part.data, part.count, reduction_.fold});
      row += aligned_bytes(part);
    }
    const std::size_t remote = operands.size() - partials_.size();
    std::byte* next = remote * row > 0 ? communicator_.scratch(remote * row) : nullptr;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const int worker = operands[i].worker;
      if (worker == communicator_.rank()) {
        const auto mine = i - static_cast<std::size_t>(reduction_.plan.first_of(worker));
        add_own(partials_[mine].slice(first, sums.count()), tasks);
      } else {
        next = add_remote(worker, sums, next, tasks);
      }
    }
    communicator_.move(moves_, check);
    for (const flat::SumTask& task : tasks) sum(task);
  }

 private:
  static void add_own(const Spread& partial, std::vector<flat::SumTask>& tasks) {
    LOCKSTEP_CHECK(partial.parts().size() == tasks.size(),
                   "partials lie in parts as the result does");
    for (std::size_t i = 0; i < tasks.size(); ++i)
      tasks[i].operands.push_back(partial.parts()[i].data);
  }

  // Returns the end of the memory that they take.
  std::byte* add_remote(int worker, const Spread& sums, std::byte* next,
                        std::vector<flat::SumTask>& tasks) {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const Buffer& part = sums.parts()[i];
      moves_.push_back({Direction::kRecv, worker, next, part.bytes()});
      tasks[i].operands.push_back(next);
      next += aligned_bytes(part);
    }
    return next;
  }

  void sum(const flat::SumTask& task) {
    if (task.operands.size() > 1 || task.fold.factor != 1) return communicator_.sum(task);
    communicator_.copy(task.out, task.operands[0], task.count * size_of(task.fold.dtype));
  }

  Communicator& communicator_;
  const Reduction& reduction_;
  std::span<const Spread> partials_;
  std::vector<Move> moves_;
};

std::vector<int> peers_of(const Communicator& communicator) {
  std::vector<int> peers;
  for (int i = 1; i < communicator.size(); ++i)
    peers.push_back((communicator.rank() + i) % communicator.size());
  return peers;
}

Spread slice_of(const Spread& data, const Cut& cut, int worker) {
  return data.slice(cut.first(worker), cut.count(worker));
}

// Sends every slice from its owner to all workers.
void hand_out(Communicator& communicator, const Spread& data, const Cut& cut, WaitCheck& check) {
  std::vector<Move> moves;
  for (const int peer : peers_of(communicator)) {
    add_moves(moves, Direction::kSend, peer, slice_of(data, cut, communicator.rank()));
    add_moves(moves, Direction::kRecv, peer, slice_of(data, cut, peer));
  }
  communicator.move(moves, check);
}

void reduce_stretch(Communicator& communicator, const Reduction& reduction,
                    std::span<const Spread> partials, const Spread& result, WaitCheck& check) {
  Owner owner(communicator, reduction, partials);
  const int rank = communicator.rank();
  if (result.bytes() <= kShortBytes || communicator.size() == 1) {
    for (const int peer : peers_of(communicator)) owner.give(peer, 0, result.count());
    return owner.take_and_sum(result, 0, check);
  }
  const Cut cut = Cut::even(result.count(), communicator.size(), 64 / size_of(result.dtype()));
  for (const int peer : peers_of(communicator)) owner.give(peer, cut.first(peer), cut.count(peer));
  owner.take_and_sum(slice_of(result, cut, rank), cut.first(rank), check);
  hand_out(communicator, result, cut, check);
}

// How many elements from `first` on are reduced at a time. It is the same on all workers, because
// their parts have the same counts.
std::size_t stretch_of(const Spread& data, std::size_t first) {
  const std::size_t most = std::min(kStretchBytes / size_of(data.dtype()), data.count() - first);
  const Spread left = data.slice(first, most);
  if (left.parts().size() <= kStretchParts) return most;
  std::size_t count = 0;
  for (std::size_t i = 0; i < kStretchParts; ++i) count += left.parts()[i].count;
  return count;
}

void reduce_direct(Communicator& communicator, const DeviceTask& task, WaitCheck& check) {
  const plan::Reduction plan = plan::plan_reduction(task.shards, communicator.size());
  LOCKSTEP_CHECK(static_cast<int>(task.partials.size()) == plan.count_of(communicator.rank()),
                 "a worker brings the partials that the plan gives it");
  const Reduction reduction{plan, flat::tree_program(plan), task.fold};
  std::size_t first = 0;
  while (first < task.result.count()) {
    const std::size_t count = stretch_of(task.result, first);
    std::vector<Spread> partials;
    for (const Spread& partial : task.partials) partials.push_back(partial.slice(first, count));
    reduce_stretch(communicator, reduction, partials, task.result.slice(first, count), check);
    first += count;
  }
}

void reduce_scatter(Communicator& communicator, const DeviceTask& task, WaitCheck& check) {
  const plan::Reduction plan = plan::plan_reduction(communicator.size(), communicator.size());
  const Reduction reduction{plan, flat::tree_program(plan), task.fold};
  const Cut cut = Cut::of(task.counts);
  const int rank = communicator.rank();
  Owner owner(communicator, reduction, task.partials);
  for (const int peer : peers_of(communicator)) owner.give(peer, cut.first(peer), cut.count(peer));
  owner.take_and_sum(slice_of(task.result, cut, rank), cut.first(rank), check);
}

// The library's own all-reduce, then the factor.
void reduce_native(Communicator& communicator, const DeviceTask& task, WaitCheck& check) {
  const Spread result = task.result.slice(0, task.result.count());
  const Spread partial = task.partials[0].slice(0, result.count());
  if (result.count() == 0) return;
  for (std::size_t i = 0; i < result.parts().size(); ++i)
    communicator.copy(result.parts()[i].data, partial.parts()[i].data, result.parts()[i].bytes());
  for (std::span<const Buffer> left = result.parts(); !left.empty();) {
    const std::size_t some = std::min(kStretchParts, left.size());
    communicator.all_reduce(left.first(some), task.fold.op, check);
    left = left.subspan(some);
  }
  if (task.fold.factor == 1) return;
  for (const Buffer& part : result.parts())
    communicator.sum({{part.data}, {0}, part.data, part.count, task.fold});
}

// One group, with a send and a receive for each peer. It needs no scratch memory, so it is not cut
// into stretches.
void all_to_all(Communicator& communicator, const DeviceTask& task, WaitCheck& check) {
  const int rank = communicator.rank();
  const PairSlices slices(task.counts, communicator.size());
  const Buffer& data = task.partials[0].parts()[0];
  const Buffer& result = task.result.parts()[0];
  const Cut outgoing = slices.data_of(rank);
  const Cut incoming = slices.result_of(rank);
  std::vector<Move> moves;
  for (const int peer : peers_of(communicator)) {
    add_moves(moves, Direction::kSend, peer, outgoing.of(data, peer));
    add_moves(moves, Direction::kRecv, peer, incoming.of(result, peer));
  }
  communicator.move(moves, check);
  const Buffer own = outgoing.of(data, rank);
  communicator.copy(incoming.of(result, rank).data, own.data, own.bytes());
}

void broadcast(Communicator& communicator, const DeviceTask& task, WaitCheck& check) {
  for (const Buffer& part : task.result.parts()) {
    if (part.count > 0) communicator.broadcast(part, task.root, check);
  }
}

}  // namespace

void queue_collective(Communicator& communicator, const DeviceTask& task, WaitCheck& check) {
  switch (task.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
      if (task.algorithm == Algorithm::kNative) return reduce_native(communicator, task, check);
      return reduce_direct(communicator, task, check);
    case Kind::kReduceScatter:
      return reduce_scatter(communicator, task, check);
    case Kind::kAllGather:
      return hand_out(communicator, task.result, Cut::of(task.counts), check);
    case Kind::kAllToAll:
      return all_to_all(communicator, task, check);
    case Kind::kBroadcast:
      return broadcast(communicator, task, check);
    case Kind::kBarrier:
    case Kind::kMessage:
      break;
  }
  LOCKSTEP_CHECK(false, "barriers and messages are the host's");
}

}  // namespace lockstep::comm
