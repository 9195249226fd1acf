// Collectives in memory that all members can reach.
//
//   short   data that fit on the card of every member travel there: one round, and every worker
//           adds everything
//   long    cards say where the buffers are. After the first round every worker reads the others'
//           buffers and writes results into them. After the second round nobody touches memory of
//           others any more. The second round ends in Exchange::finish()
//
//   reduce        the owner of a slice adds the operands of all workers in the plan's order and
//                 stores the sum to all results: every byte is read once and written once per
//                 worker
//   all_gather    every worker copies the others' slices
//   all_to_all    every worker copies its slice of each worker's data; results may be in any memory
//   broadcast     every worker copies the root's buffer
//
// No message is sent, and there are no copies in between: the cost is that of the memory. The bits
// are those of direct.cpp, which adds the same operands in the same order.
#include "comm/algorithms/algorithms.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "comm/algorithms/reach.h"
#include "flat/tree_sum.h"

namespace lockstep::comm {
namespace {

// Asks for the card of every worker, not only of this one: workers hold different numbers of
// operands, and all must decide the same.
bool fits_on_cards(const plan::Reduction& plan, const Buffer& result) {
  if (result.bytes() > kCardBytes) return false;
  std::size_t most = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < plan.operands.size(); ++i) {
    count = i > 0 && plan.operands[i].worker == plan.operands[i - 1].worker ? count + 1 : 1;
    most = std::max(most, count);
  }
  return most * result.bytes() <= kCardBytes;
}

void reduce_on_cards(Exchange& exchange, const plan::Reduction& plan,
                     std::span<const Buffer> partials, Buffer result, ReduceRule rule) {
  const std::size_t bytes = result.bytes();
  exchange.begin(partials);
  exchange.await_all();
  std::vector<const void*> operands;
  operands.reserve(plan.operands.size());
  for (std::size_t i = 0; i < plan.operands.size(); ++i) {
    const int worker = plan.operands[i].worker;
    const std::size_t index = i - static_cast<std::size_t>(plan.first_of(worker));
    operands.push_back(worker == exchange.rank() ? partials[index].data
                                                 : exchange.card_of(worker) + index * bytes);
  }
  flat::TreeSum(plan, rule.fold(result.dtype)).run(operands, result.data, result.count);
}

std::vector<int> buffers_of(const plan::Reduction& plan, int results) {
  std::vector<int> counts;
  counts.reserve(static_cast<std::size_t>(plan.workers));
  for (int worker = 0; worker < plan.workers; ++worker)
    counts.push_back(plan.count_of(worker) + results);
  return counts;
}

}  // namespace

bool reduce_in_memory(Exchange& exchange, const plan::Reduction& plan,
                      std::span<const Buffer> partials, Buffer result, ReduceRule rule) {
  if (fits_on_cards(plan, result)) {
    reduce_on_cards(exchange, plan, partials, result, rule);
    return true;
  }
  std::vector<Buffer> mine(partials.begin(), partials.end());
  mine.push_back(result);
  const Reach reach(exchange, mine, buffers_of(plan, 1));
  if (!reach.everywhere()) return false;
  const Cut cut = Cut::even(result.count, exchange.size(), 64 / size_of(result.dtype));
  const int own = exchange.rank();
  const std::size_t offset = cut.first(own) * size_of(result.dtype);
  std::vector<const void*> operands;
  operands.reserve(plan.operands.size());
  for (std::size_t i = 0; i < plan.operands.size(); ++i) {
    const int worker = plan.operands[i].worker;
    operands.push_back(reach.of(worker, static_cast<int>(i) - plan.first_of(worker)) + offset);
  }
  // Every worker begins with another result, so that not all take lines from one core at a time.
  std::vector<void*> outs;
  outs.reserve(static_cast<std::size_t>(exchange.size()));
  for (int i = 0; i < exchange.size(); ++i) {
    const int worker = (own + i) % exchange.size();
    outs.push_back(reach.of(worker, plan.count_of(worker)) + offset);
  }
  flat::TreeSum(plan, rule.fold(result.dtype))
      .run(operands, std::span<void* const>(outs), cut.count(own));
  exchange.part();
  return true;
}

bool reduce_scatter_in_memory(Exchange& exchange, Buffer data, const Cut& cut, ReduceRule rule) {
  const plan::Reduction& plan = plan::plan_of_one_each(exchange.size());
  const std::array<Buffer, 1> mine{data};
  if (data.bytes() <= kCardBytes) {
    reduce_on_cards(exchange, plan, mine, data, rule);
    return true;
  }
  const Reach reach(exchange, mine, buffers_of(plan, 0));
  if (!reach.everywhere()) return false;
  const Buffer own = cut.of(data, exchange.rank());
  const std::size_t offset = cut.first(exchange.rank()) * size_of(data.dtype);
  std::vector<const void*> operands;
  operands.reserve(static_cast<std::size_t>(exchange.size()));
  for (int worker = 0; worker < exchange.size(); ++worker)
    operands.push_back(reach.of(worker, 0) + offset);
  flat::TreeSum(plan, rule.fold(data.dtype)).run(operands, own.data, own.count);
  exchange.part();
  return true;
}

bool all_gather_in_memory(Exchange& exchange, Buffer data, const Cut& cut) {
  const std::size_t element = size_of(data.dtype);
  const auto copy_from = [&](int worker, const std::byte* slice) {
    const Buffer part = cut.of(data, worker);
    if (part.count > 0) std::memcpy(part.data, slice, part.bytes());
  };
  if (cut.longest() * element <= kCardBytes) {
    const Buffer mine = cut.of(data, exchange.rank());
    exchange.begin({&mine, 1});
    exchange.await_all();
    for (const int peer : exchange.peers()) copy_from(peer, exchange.card_of(peer));
    return true;
  }
  const std::vector<int> one(static_cast<std::size_t>(exchange.size()), 1);
  const Reach reach(exchange, {&data, 1}, one);
  if (!reach.everywhere()) return false;
  for (const int peer : exchange.peers())
    copy_from(peer, reach.of(peer, 0) + cut.first(peer) * element);
  exchange.part();
  return true;
}

// Cards have room for all slices of a worker if the slices of all workers together are that short.
bool all_to_all_in_memory(Exchange& exchange, Buffer data, Buffer result,
                          const PairSlices& slices) {
  const std::size_t element = size_of(data.dtype);
  const Cut incoming = slices.result_of(exchange.rank());
  const auto copy_from = [&](int worker, const void* their_data) {
    const Buffer part = incoming.of(result, worker);
    const std::size_t offset = slices.data_of(worker).first(exchange.rank()) * element;
    if (part.count > 0)
      std::memcpy(part.data, static_cast<const std::byte*>(their_data) + offset, part.bytes());
  };
  if (slices.total() * element <= kCardBytes) {
    exchange.begin({&data, 1});
    exchange.await_all();
    for (const int peer : exchange.peers()) copy_from(peer, exchange.card_of(peer));
    copy_from(exchange.rank(), data.data);
    return true;
  }
  const std::vector<int> one(static_cast<std::size_t>(exchange.size()), 1);
  std::vector<std::size_t> lengths;
  for (int worker = 0; worker < exchange.size(); ++worker)
    lengths.push_back(slices.data_of(worker).total());
  const Reach reach(exchange, {&data, 1}, one, lengths);
  if (!reach.everywhere()) return false;
  for (const int peer : exchange.peers()) copy_from(peer, reach.of(peer, 0));
  exchange.part();
  copy_from(exchange.rank(), data.data);
  return true;
}

bool broadcast_in_memory(Exchange& exchange, Buffer data, int root) {
  const bool from_here = exchange.rank() == root;
  if (data.bytes() <= kCardBytes) {
    exchange.begin({&data, from_here ? 1U : 0U});
    exchange.await_all();
    if (!from_here && data.count > 0) std::memcpy(data.data, exchange.card_of(root), data.bytes());
    return true;
  }
  const std::vector<int> one(static_cast<std::size_t>(exchange.size()), 1);
  const Reach reach(exchange, {&data, 1}, one);
  if (!reach.everywhere()) return false;
  if (!from_here) std::memcpy(data.data, reach.of(root, 0), data.bytes());
  exchange.part();
  return true;
}

}  // namespace lockstep::comm
