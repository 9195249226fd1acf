// Halving-doubling all-reduce.
//
//   half    the stretch of the buffer that this worker still sums (Part)
//   steps   2 log2(N)        bytes per worker   2 (N−1)/N of the buffer
//
//   halving    with partners at distance 1, 2, 4 …: send the partner's half, receive this worker's
//              half, add
//   doubling   the same steps backwards: swap halves that are finished
//
// Partners at distance 1, 2, 4 …, with the lower partner's sum on the left, make the order of
// addition the tree over workers. So the bits do not depend on how the buffer is cut.
#include "comm/algorithms/algorithms.h"
#include "comm/algorithms/working.h"

namespace lockstep::comm {
namespace {

struct Part {
  std::size_t first = 0;
  std::size_t count = 0;

  Part low() const { return {first, count - count / 2}; }
  Part high() const { return {first + low().count, count / 2}; }
};

// Sends one stretch of a buffer to a peer while it receives another from it.
void swap_parts(Exchange& exchange, int peer, const Buffer& give, void* take,
                std::size_t take_bytes, Stage stage) {
  auto incoming = exchange.recv(peer, take, take_bytes, stage);
  auto outgoing = exchange.send(peer, give.data, give.bytes(), stage);
  exchange.wait(incoming);
  exchange.wait(outgoing);
}

}  // namespace

void halving_doubling_all_reduce(Exchange& exchange, Buffer data, ReduceRule rule) {
  const auto steps = plan::halving_steps(exchange.rank(), exchange.size());
  std::vector<int> partners;
  partners.reserve(steps.size());
  for (const auto& step : steps) partners.push_back(step.partner);
  exchange.meet(partners);

  const Working working(exchange, data, (data.count + 1) / 2);
  std::vector<Part> parts{{0, data.count}};
  for (const auto& step : steps) {
    const Part low = parts.back().low();
    const Part high = parts.back().high();
    const Part keep = step.keep_low ? low : high;
    const Part give = step.keep_low ? high : low;
    const Buffer mine = working.sums.slice(keep.first, keep.count);
    swap_parts(exchange, step.partner, working.sums.slice(give.first, give.count), working.staging,
               mine.bytes(), Stage::kOperands);
    const void* left = step.partner_is_left ? working.staging : mine.data;
    const void* right = step.partner_is_left ? mine.data : working.staging;
    flat::combine(mine.dtype, rule.op, left, right, mine.data, mine.count);
    parts.push_back(keep);
  }

  working.finish(data, parts.back().first, parts.back().count, rule.factor);
  for (std::size_t i = steps.size(); i-- > 0;) {
    const Part theirs = steps[i].keep_low ? parts[i].high() : parts[i].low();
    const Buffer mine = data.slice(parts[i + 1].first, parts[i + 1].count);
    const Buffer take = data.slice(theirs.first, theirs.count);
    swap_parts(exchange, steps[i].partner, mine, take.data, take.bytes(), Stage::kResults);
  }
}

}  // namespace lockstep::comm
