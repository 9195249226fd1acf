// Direct reduction.
//
//   operand  a partial of some worker; the plan says in which order operands are added
//   slice    what one worker owns of the buffer: it adds the operands of all workers there
//   packet   the elements of a slice that travel as one message, while others travel or are added
//
//   1. every worker sends each owner that owner's slice of its operands
//   2. an owner adds a packet, in the order of the plan, as soon as all operands of it are there
//   3. it sends the sum to all workers, directly into their results
//
//   rounds   2 messages one after the other, for any number of workers
//   bytes    per worker (P + 1) · (N−1)/N of the buffer, where P is the number of its operands. For
//            P = 1 these are the bytes of the ring algorithm (plan/traffic.h counts them)
//
// Only the owner adds, and always in the plan's order. So the bits do not depend on slices,
// packets, the order of arrival or the engine. Short buffers skip step 3: every worker owns
// everything and sends N−1 short messages.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "comm/algorithms/algorithms.h"
#include "flat/tree_sum.h"
#include "plan/traffic.h"

namespace lockstep::comm {
namespace {

// A slice goes in several packets, so that sums travel while operands still come. But a packet is so
// large that the time for the wake-ups of a message is small beside the time for its bytes: over tcp
// on the loopback, 2 workers, 1 to 16 MiB take 3 % longer than with packets of 4 MiB; with 8 packets
// 10 %.
constexpr std::size_t kPacketsOfSlice = 4;
constexpr std::size_t kLeastPacketBytes = std::size_t{256} << 10;
constexpr std::size_t kMostPacketBytes = std::size_t{4} << 20;
// For each operand, of receives that are posted before they are needed.
constexpr std::size_t kBytesAhead = 4 * kMostPacketBytes;

// In elements; whole lines of the cache, so that every packet begins where vectors are fast.
std::size_t packet_of(const Cut& cut, std::size_t element) {
  const std::size_t even = (cut.longest() + kPacketsOfSlice - 1) / kPacketsOfSlice * element;
  const std::size_t bytes = std::clamp(even, kLeastPacketBytes, kMostPacketBytes);
  const std::size_t line = plan::line_elements(element);
  return (bytes / element + line - 1) / line * line;
}

using Ticket = Exchange::Ticket;

// The receiving side of step 1, and the input of step 2: the packets of this worker's slice from
// all operands. It holds only a window of packets, kBytesAhead of each operand, so that memory does
// not grow with the buffer.
class OperandWindow {
 public:
  OperandWindow(Exchange& exchange, const plan::Reduction& plan, std::span<const Buffer> partials,
                const Cut& cut, std::size_t packet)
      : exchange_(exchange),
        plan_(plan),
        partials_(partials),
        first_(cut.first(exchange.rank())),
        count_(cut.count(exchange.rank())),
        packet_(packet),
        element_(size_of(partials[0].dtype)),
        pointers_(plan.operands.size()) {
    const std::size_t remote = plan.operands.size() - partials.size();
    const std::size_t window = std::min(kBytesAhead / (packet_ * element_), packets());
    rows_ = exchange.scratch(remote * window * packet_ * element_);
    tickets_.resize(window);
    for (std::size_t i = 0; i < window; ++i) post(i);
  }

  std::size_t packets() const { return (count_ + packet_ - 1) / packet_; }
  std::size_t first(std::size_t index) const { return first_ + index * packet_; }
  std::size_t count(std::size_t index) const { return std::min(packet_, count_ - index * packet_); }

  // Waits for packet `index` of all operands. Returns pointers in the plan's order.
  std::span<const void* const> await(std::size_t index) {
    exchange_.wait_all(tickets_[index % tickets_.size()]);
    std::size_t remote = 0;
    for (std::size_t i = 0; i < plan_.operands.size(); ++i) {
      const int worker = plan_.operands[i].worker;
      if (worker == exchange_.rank()) {
        pointers_[i] = partials_[i - plan_.first_of(worker)].slice(first(index), 0).data;
      } else {
        pointers_[i] = row(index, remote++);
      }
    }
    return pointers_;
  }

  // Packet `index` has been added. Its memory may take the next packet of the window.
  void release(std::size_t index) {
    if (index + tickets_.size() < packets()) post(index + tickets_.size());
  }

 private:
  std::byte* row(std::size_t index, std::size_t remote) const {
    return rows_ + (remote * tickets_.size() + index % tickets_.size()) * packet_ * element_;
  }

  void post(std::size_t index) {
    auto& tickets = tickets_[index % tickets_.size()];
    tickets.clear();
    std::size_t remote = 0;
    for (const plan::Operand& operand : plan_.operands) {
      if (operand.worker == exchange_.rank()) continue;
      tickets.push_back(
          exchange_.recv(operand.worker, row(index, remote++), count(index) * element_));
    }
  }

  Exchange& exchange_;
  const plan::Reduction& plan_;
  std::span<const Buffer> partials_;
  std::size_t first_;
  std::size_t count_;
  std::size_t packet_;
  std::size_t element_;
  std::byte* rows_ = nullptr;
  std::vector<std::vector<Ticket>> tickets_;
  std::vector<const void*> pointers_;
};

// Step 1: sends the peers their slices of this worker's operands, packet by packet, in the order in
// which they are awaited.
std::vector<Ticket> send_operands(Exchange& exchange, std::span<const Buffer> partials,
                                  const Cut& cut, std::size_t packet) {
  std::vector<Ticket> tickets;
  for (const int peer : exchange.peers()) {
    for (std::size_t done = 0; done < cut.count(peer); done += packet) {
      const std::size_t count = std::min(packet, cut.count(peer) - done);
      for (const Buffer& partial : partials) {
        const Buffer part = partial.slice(cut.first(peer) + done, count);
        tickets.push_back(exchange.send(peer, part.data, part.bytes()));
      }
    }
  }
  return tickets;
}

// Step 3, the receiving side: the sums of the other owners go directly into the result.
std::vector<Ticket> expect_results(Exchange& exchange, Buffer result, const Cut& cut,
                                   std::size_t packet) {
  std::vector<Ticket> tickets;
  for (const int peer : exchange.peers()) {
    for (std::size_t done = 0; done < cut.count(peer); done += packet) {
      const Buffer part =
          result.slice(cut.first(peer) + done, std::min(packet, cut.count(peer) - done));
      tickets.push_back(exchange.recv(peer, part.data, part.bytes(), Stage::kResults));
    }
  }
  return tickets;
}

enum class HandOut { kNo, kYes };

// What every step needs to know.
struct Job {
  const plan::Reduction& plan;
  std::span<const Buffer> partials;
  Buffer result;
  ReduceRule rule;
};

// A result may arrive in the memory of its operand: a peer sends the sum of a packet only after it
// has received that packet from here.
void reduce_slices(Exchange& exchange, const Job& job, const Cut& cut, HandOut hand_out) {
  const std::size_t packet = packet_of(cut, size_of(job.result.dtype));
  OperandWindow window(exchange, job.plan, job.partials, cut, packet);
  std::vector<Ticket> incoming;
  if (hand_out == HandOut::kYes) incoming = expect_results(exchange, job.result, cut, packet);
  std::vector<Ticket> outgoing = send_operands(exchange, job.partials, cut, packet);
  flat::TreeSum sum(job.plan, job.rule.fold(job.result.dtype));
  for (std::size_t index = 0; index < window.packets(); ++index) {
    const Buffer part = job.result.slice(window.first(index), window.count(index));
    sum.run(window.await(index), part.data, part.count);
    window.release(index);
    if (hand_out == HandOut::kNo) continue;
    for (const int peer : exchange.peers()) {
      outgoing.push_back(exchange.send(peer, part.data, part.bytes(), Stage::kResults));
    }
  }
  exchange.wait_all(outgoing);
  exchange.wait_all(incoming);
}

// Every worker owns everything, so there are no results to hand out.
void reduce_short(Exchange& exchange, const Job& job) {
  const plan::Reduction& plan = job.plan;
  const std::size_t bytes = job.result.bytes();
  std::byte* row = exchange.scratch(plan.operands.size() * bytes);
  std::vector<const void*> pointers;
  pointers.reserve(plan.operands.size());
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < plan.operands.size(); ++i) {
    const int worker = plan.operands[i].worker;
    if (worker == exchange.rank()) {
      pointers.push_back(job.partials[i - plan.first_of(worker)].data);
    } else {
      pointers.push_back(row);
      tickets.push_back(exchange.recv(worker, row, bytes));
      row += bytes;
    }
  }
  for (const int peer : exchange.peers()) {
    for (const Buffer& partial : job.partials) {
      tickets.push_back(exchange.send(peer, partial.data, bytes));
    }
  }
  exchange.wait_all(tickets);
  flat::TreeSum(plan, job.rule.fold(job.result.dtype))
      .run(pointers, job.result.data, job.result.count);
}

}  // namespace

void direct_reduce(Exchange& exchange, const plan::Reduction& plan,
                   std::span<const Buffer> partials, Buffer result, ReduceRule rule) {
  LOCKSTEP_CHECK(static_cast<int>(partials.size()) == plan.count_of(exchange.rank()),
                 "a worker brings the partials that the plan gives it");
  if (exchange.has_board() && reduce_in_memory(exchange, plan, partials, result, rule)) return;
  exchange.meet(exchange.peers());
  const Job job{plan, partials, result, rule};
  plan::DirectCut cut = plan::direct_cut(result.count, size_of(result.dtype), exchange.size());
  if (cut.everyone_owns_all) {
    reduce_short(exchange, job);
  } else {
    reduce_slices(exchange, job, Cut::at(std::move(cut.bounds)), HandOut::kYes);
  }
}

void direct_reduce_scatter(Exchange& exchange, Buffer data, const Cut& cut, ReduceRule rule) {
  if (exchange.has_board() && reduce_scatter_in_memory(exchange, data, cut, rule)) return;
  exchange.meet(exchange.peers());
  const plan::Reduction& plan = plan::plan_of_one_each(exchange.size());
  const std::array<Buffer, 1> partials{data};
  reduce_slices(exchange, {plan, partials, data, rule}, cut, HandOut::kNo);
}

void direct_all_gather(Exchange& exchange, Buffer data, const Cut& cut) {
  if (exchange.has_board() && all_gather_in_memory(exchange, data, cut)) return;
  exchange.meet(exchange.peers());
  const Buffer mine = cut.of(data, exchange.rank());
  std::vector<Ticket> tickets;
  for (const int peer : exchange.peers()) {
    const Buffer theirs = cut.of(data, peer);
    tickets.push_back(exchange.recv(peer, theirs.data, theirs.bytes()));
  }
  for (const int peer : exchange.peers()) {
    tickets.push_back(exchange.send(peer, mine.data, mine.bytes()));
  }
  exchange.wait_all(tickets);
}

void direct_all_to_all(Exchange& exchange, Buffer data, Buffer result, const PairSlices& slices) {
  if (exchange.has_board() && all_to_all_in_memory(exchange, data, result, slices)) return;
  exchange.meet(exchange.peers());
  const Cut outgoing = slices.data_of(exchange.rank());
  const Cut incoming = slices.result_of(exchange.rank());
  std::vector<Ticket> tickets;
  for (const int peer : exchange.peers()) {
    const Buffer theirs = incoming.of(result, peer);
    tickets.push_back(exchange.recv(peer, theirs.data, theirs.bytes()));
  }
  for (const int peer : exchange.peers()) {
    const Buffer mine = outgoing.of(data, peer);
    tickets.push_back(exchange.send(peer, mine.data, mine.bytes()));
  }
  const Buffer own = outgoing.of(data, exchange.rank());
  if (own.count > 0) std::memcpy(incoming.of(result, exchange.rank()).data, own.data, own.bytes());
  exchange.wait_all(tickets);
}

}  // namespace lockstep::comm
