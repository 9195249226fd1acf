// The ring algorithm.
//
//   slice   one of N equal shares of the buffer (`chunk` in the code)
//   steps   2 (N−1)          bytes per worker   2 (N−1)/N of the buffer
//
//   round 1   N−1 times: pass a slice to the right, add the slice that comes from the left
//   round 2   N−1 times: pass the finished slices on
//
// Not bit-stable: slice c is added in the order of ranks c, c+1, … So the bits depend on how the
// buffer is cut, and that depends on the number of workers and on the bucket.
#include "comm/algorithms/algorithms.h"
#include "comm/algorithms/working.h"

namespace lockstep::comm {

void ring_all_reduce(Exchange& exchange, Buffer data, ReduceRule rule) {
  const int size = exchange.size();
  const int rank = exchange.rank();
  const int right = (rank + 1) % size;
  const int left = (rank + size - 1) % size;
  exchange.expect(left);
  exchange.greet(right);

  const Cut cut = Cut::even(data.count, size);
  const auto chunk = [&](const Buffer& whole, int index) {
    return cut.of(whole, (index % size + size) % size);
  };
  const Working working(exchange, data, cut.count(0));
  for (int step = 0; step < size - 1; ++step) {
    const Buffer give = chunk(working.sums, rank - step);
    const Buffer take = chunk(working.sums, rank - step - 1);
    auto incoming = exchange.recv(left, working.staging, take.bytes());
    auto outgoing = exchange.send(right, give.data, give.bytes());
    exchange.wait(incoming);
    flat::combine(take.dtype, rule.op, working.staging, take.data, take.data, take.count);
    exchange.wait(outgoing);
  }
  const int finished = (rank + 1) % size;
  working.finish(data, cut.first(finished), cut.count(finished), rule.factor);
  for (int step = 0; step < size - 1; ++step) {
    const Buffer give = chunk(data, finished - step);
    const Buffer take = chunk(data, finished - step - 1);
    auto incoming = exchange.recv(left, take.data, take.bytes(), Stage::kResults);
    auto outgoing = exchange.send(right, give.data, give.bytes(), Stage::kResults);
    exchange.wait(incoming);
    exchange.wait(outgoing);
  }
}

}  // namespace lockstep::comm
