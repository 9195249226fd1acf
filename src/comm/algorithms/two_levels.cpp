// Reduction in two levels.
//
//   slice     what one worker owns of the buffer. plan/hosts.h says who owns, and who handles, what
//   packet    the elements of a slice that travel as one message, while others travel or are added
//
//   1. a handler adds its host's nodes of a packet in the memory of the host, and sends them
//   2. an owner adds the partials of its host and the nodes of the others, packet by packet. It
//      stores the sum to all results of its host, and sends it to the handlers
//   3. a handler gets the sum, and copies it to the other results of its host
//
// Between a host and the network there are 2 (H−1)/H of the buffer each way, for H hosts whose
// shards are one node each: as if a host were one worker.
//
// On a host an element is read and written by one worker only, its owner or its handler. So a sum
// may arrive in the memory of its operands: an owner sends it only after it has received the nodes,
// and then nobody reads the operands any more. Workers of a host meet twice: before the first
// partial is read, and after the last result was written.
#include <lockstep/errors.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/algorithms/algorithms.h"
#include "comm/algorithms/reach.h"
#include "flat/tree_sum.h"

namespace lockstep::comm {
namespace {

// A network is slower than memory, so a small packet costs little. The smaller it is, the sooner
// the sums follow the operands.
constexpr std::size_t kLevelPacketBytes = std::size_t{256} << 10;
constexpr std::size_t kLevelPacketsAhead = 8;  // receives posted before they are needed

using Ticket = Exchange::Ticket;

// Elements first … first + count − 1 of the buffer.
struct Packet {
  std::size_t first = 0;
  std::size_t count = 0;
};

// The partials and results of all workers of this host. Made when all of them have come.
class HostMemory {
 public:
  // `mine`: this worker's partials, then its result. `held`: how many partials each worker has, by
  // its place on the host.
  HostMemory(Exchange& neighbours, std::span<const Buffer> mine, std::vector<int> held)
      : element_(size_of(mine[0].dtype)),
        own_(neighbours.rank()),
        held_(std::move(held)),
        reach_(neighbours, mine, with_result(held_)) {
    if (reach_.everywhere()) return;
    throw Mismatch(
        "a worker of this host has let go of memory that it passes to a reduction in two levels; "
        "keep what share_on_host() returns");
  }

  const void* partial(int place, int index, std::size_t first) const {
    return reach_.of(place, index) + first * element_;
  }
  // This worker's own first.
  std::vector<void*> results(std::size_t first) const {
    std::vector<void*> all;
    const int workers = static_cast<int>(held_.size());
    for (int i = 0; i < workers; ++i) {
      const int place = (own_ + i) % workers;
      all.push_back(reach_.of(place, held_[static_cast<std::size_t>(place)]) + first * element_);
    }
    return all;
  }

 private:
  static std::vector<int> with_result(std::vector<int> held) {
    for (int& count : held) ++count;
    return held;
  }

  std::size_t element_;
  int own_;
  std::vector<int> held_;
  Reach reach_;
};

// What all steps know.
struct LevelJob {
  Exchange& exchange;
  const plan::TwoLevels& levels;
  const HostMemory& memory;
  Buffer result;
  ReduceRule rule;
  Cut cut;

  int own() const { return exchange.rank(); }
  int host_of(int worker) const { return levels.host_of[static_cast<std::size_t>(worker)]; }
  const plan::HostLevel& here() const {
    return levels.hosts[static_cast<std::size_t>(host_of(own()))];
  }
  std::size_t bytes(const Packet& packet) const { return packet.count * size_of(result.dtype); }

  std::vector<Packet> packets(int owner) const {
    const std::size_t most = kLevelPacketBytes / size_of(result.dtype);
    std::vector<Packet> all;
    for (std::size_t done = 0; done < cut.count(owner); done += most)
      all.push_back({cut.first(owner) + done, std::min(most, cut.count(owner) - done)});
    return all;
  }

  // The owners on other hosts whose slices this worker handles.
  std::vector<int> handled() const {
    std::vector<int> owners;
    for (const int other : exchange.peers()) {
      if (host_of(other) != host_of(own()) && levels.handler(other, host_of(own())) == own())
        owners.push_back(other);
    }
    return owners;
  }

  // Where the operands of a packet are. `nodes` are those of other hosts, in order.
  std::vector<const void*> operands(const plan::LevelSum& sum, const Packet& packet,
                                    std::span<const std::byte* const> nodes = {}) const {
    std::vector<const void*> all;
    std::size_t next = 0;
    for (const plan::LevelOperand& operand : sum.operands) {
      const auto worker = static_cast<std::size_t>(operand.of);
      all.push_back(operand.node
                        ? nodes[next++]
                        : memory.partial(levels.place_of[worker], operand.index, packet.first));
    }
    return all;
  }
};

// The nodes of other hosts for this worker's slice, a few packets ahead.
class NodeWindow {
 public:
  explicit NodeWindow(const LevelJob& job) : job_(job), packets_(job.packets(job.own())) {
    for (const plan::LevelOperand& operand : job.here().whole.operands) {
      if (operand.node) senders_.push_back(job.levels.handler(job.own(), operand.of));
    }
    tickets_.resize(std::min(kLevelPacketsAhead, packets_.size()));
  }

  const std::vector<Packet>& packets() const { return packets_; }
  std::size_t scratch_bytes() const {
    return senders_.size() * tickets_.size() * kLevelPacketBytes;
  }
  void begin(std::byte* scratch) {
    rows_ = scratch;
    for (std::size_t i = 0; i < tickets_.size(); ++i) post(i);
  }

  std::vector<const std::byte*> await(std::size_t index) {
    job_.exchange.wait_all(tickets_[index % tickets_.size()]);
    std::vector<const std::byte*> nodes;
    for (std::size_t i = 0; i < senders_.size(); ++i) nodes.push_back(row(index, i));
    return nodes;
  }
  // Packet `index` has been added; its memory may take another one.
  void release(std::size_t index) {
    if (index + tickets_.size() < packets_.size()) post(index + tickets_.size());
  }

 private:
  std::byte* row(std::size_t index, std::size_t node) const {
    return rows_ + (node * tickets_.size() + index % tickets_.size()) * kLevelPacketBytes;
  }
  void post(std::size_t index) {
    auto& tickets = tickets_[index % tickets_.size()];
    tickets.clear();
    for (std::size_t i = 0; i < senders_.size(); ++i) {
      tickets.push_back(
          job_.exchange.recv(senders_[i], row(index, i), job_.bytes(packets_[index])));
    }
  }

  const LevelJob& job_;
  std::vector<Packet> packets_;
  std::vector<int> senders_;  // of each node
  std::byte* rows_ = nullptr;
  std::vector<std::vector<Ticket>> tickets_;
};

// Step 1. The first node of a packet goes from where its sum will arrive, the others from scratch
// memory. The first is added last: that place may hold an operand of the others.
class NodeSender {
 public:
  explicit NodeSender(const LevelJob& job) : job_(job), owners_(job.handled()) {
    for (const plan::LevelSum& node : job.here().nodes)
      sums_.emplace_back(node.plan, flat::Fold{job.result.dtype, job.rule.op});
  }

  const std::vector<int>& owners() const { return owners_; }
  std::size_t scratch_bytes() const {
    std::size_t elements = 0;
    for (const int owner : owners_) elements += job_.cut.count(owner);
    return elements * size_of(job_.result.dtype) * (sums_.size() - 1);
  }

  void run(std::byte* scratch, std::vector<Ticket>& outgoing) {
    for (const int owner : owners_) {
      for (const Packet& packet : job_.packets(owner)) {
        std::vector<void*> at{job_.result.slice(packet.first, 0).data};
        for (std::size_t i = 1; i < sums_.size(); ++i)
          at.push_back(std::exchange(scratch, scratch + job_.bytes(packet)));
        for (std::size_t i = sums_.size(); i-- > 0;)
          sums_[i].run(job_.operands(job_.here().nodes[i], packet), at[i], packet.count);
        for (void* const node : at)
          outgoing.push_back(job_.exchange.send(owner, node, job_.bytes(packet)));
      }
    }
  }

 private:
  const LevelJob& job_;
  std::vector<int> owners_;
  std::vector<flat::TreeSum> sums_;
};

// Step 2.
void reduce_own_slice(const LevelJob& job, NodeWindow& window, std::vector<Ticket>& outgoing) {
  const plan::LevelSum& whole = job.here().whole;
  flat::TreeSum sum(whole.plan, job.rule.fold(job.result.dtype));
  for (std::size_t index = 0; index < window.packets().size(); ++index) {
    const Packet& packet = window.packets()[index];
    const std::vector<void*> results = job.memory.results(packet.first);
    sum.run(job.operands(whole, packet, window.await(index)), std::span<void* const>(results),
            packet.count);
    window.release(index);
    for (int host = 0; host < static_cast<int>(job.levels.hosts.size()); ++host) {
      if (host == job.host_of(job.own())) continue;
      outgoing.push_back(job.exchange.send(job.levels.handler(job.own(), host), results[0],
                                           job.bytes(packet), Stage::kResults));
    }
  }
}

// Step 3, the receives.
std::vector<Ticket> expect_sums(const LevelJob& job, const std::vector<int>& owners) {
  std::vector<Ticket> tickets;
  for (const int owner : owners) {
    for (const Packet& packet : job.packets(owner)) {
      tickets.push_back(job.exchange.recv(owner, job.result.slice(packet.first, 0).data,
                                          job.bytes(packet), Stage::kResults));
    }
  }
  return tickets;
}

void hand_out_sums(const LevelJob& job, const std::vector<int>& owners,
                   std::vector<Ticket>& tickets) {
  std::size_t next = 0;
  for (const int owner : owners) {
    for (const Packet& packet : job.packets(owner)) {
      job.exchange.wait(tickets[next++]);
      const std::vector<void*> results = job.memory.results(packet.first);
      for (std::size_t i = 1; i < results.size(); ++i)
        std::memcpy(results[i], results[0], job.bytes(packet));
    }
  }
}

void run_levels(const LevelJob& job) {
  NodeWindow window(job);
  NodeSender nodes(job);
  std::byte* const scratch = job.exchange.scratch(window.scratch_bytes() + nodes.scratch_bytes());
  window.begin(scratch);
  std::vector<Ticket> incoming = expect_sums(job, nodes.owners());
  std::vector<Ticket> outgoing;
  nodes.run(scratch + window.scratch_bytes(), outgoing);
  reduce_own_slice(job, window, outgoing);
  hand_out_sums(job, nodes.owners(), incoming);
  job.exchange.wait_all(outgoing);
}

}  // namespace

void two_level_reduce(Exchange& exchange, const plan::TwoLevels& levels,
                      std::span<const Buffer> partials, Buffer result, ReduceRule rule) {
  std::vector<Buffer> mine(partials.begin(), partials.end());
  mine.push_back(result);
  const int host = levels.host_of[static_cast<std::size_t>(exchange.rank())];
  std::vector<int> held;
  for (const int worker : levels.hosts[static_cast<std::size_t>(host)].workers)
    held.push_back(levels.held[static_cast<std::size_t>(worker)]);
  // All of them, also those to whom nothing is sent: one that is in another operation must hear of
  // this one, and may wait for anybody.
  exchange.meet(exchange.peers());
  Exchange neighbours = exchange.on_host();
  const HostMemory memory(neighbours, mine, std::move(held));
  Cut cut = Cut::at(plan::two_level_bounds(result.count, size_of(result.dtype), levels));
  run_levels({exchange, levels, memory, result, rule, std::move(cut)});
  neighbours.part();
  neighbours.finish();
}

}  // namespace lockstep::comm
