// Dissemination barrier.
//
//   rounds   ⌈log2 N⌉: in round k greet the rank 2^k after this one, wait for the greeting of the
//   one 2^k before
//
// After round k a worker knows of 2^(k+1) workers that they have arrived; greetings are all it
// takes.
#include "comm/algorithms/algorithms.h"

namespace lockstep::comm {

void dissemination_barrier(Exchange& exchange) {
  if (exchange.has_board()) {
    exchange.begin({});
    return exchange.await_all();
  }
  const int size = exchange.size();
  for (int distance = 1; distance < size; distance *= 2) {
    const int before = (exchange.rank() + size - distance) % size;
    exchange.expect(before);
    exchange.greet((exchange.rank() + distance) % size);
    exchange.check(before);
  }
}

}  // namespace lockstep::comm
