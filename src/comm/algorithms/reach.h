// Memory of other workers that an operation reads and writes.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "comm/core/exchange.h"

namespace lockstep::comm {

// The buffers of all workers of a long operation, mapped here. It keeps the arenas mapped while it
// lives.
class Reach {
 public:
  // Tells the others where the buffers `mine` are, and learns where theirs are. Worker w has
  // counts[w] buffers, each of lengths[w] elements; without lengths, all workers' buffers are as
  // long as mine[0]. All addresses are copied from the cards before the first is resolved, and
  // every worker decides from the same addresses whether all buffers are shared: so all take the
  // same way.
  Reach(Exchange& exchange, std::span<const Buffer> mine, std::span<const int> counts,
        std::span<const std::size_t> lengths = {})
      : firsts_(counts.size() + 1) {
    exchange.show(mine);
    exchange.await_all();
    std::partial_sum(counts.begin(), counts.end(), firsts_.begin() + 1);
    std::vector<ArenaAddress> addresses(static_cast<std::size_t>(firsts_.back()));
    for (int worker = 0; worker < exchange.size(); ++worker) {
      std::memcpy(&addresses[firsts_[worker]], exchange.card_of(worker),
                  static_cast<std::size_t>(counts[worker]) * sizeof(ArenaAddress));
    }
    everywhere_ = std::all_of(addresses.begin(), addresses.end(),
                              [](const ArenaAddress& address) { return address.shared(); });
    if (!everywhere_) return;
    memory_.reserve(addresses.size());
    for (int worker = 0; worker < exchange.size(); ++worker) {
      Buffer like = mine[0];
      if (!lengths.empty()) like.count = lengths[worker];
      for (int i = 0; i < counts[worker]; ++i) {
        const ArenaAddress address = addresses[firsts_[worker] + i];
        if (worker == exchange.rank()) {  // not owned: borrowed from the caller
          memory_.emplace_back(std::shared_ptr<void>(), static_cast<std::byte*>(mine[i].data));
        } else if (i > 0 && address == addresses[firsts_[worker] + i - 1]) {
          memory_.push_back(memory_.back());
        } else {
          memory_.push_back(exchange.resolve(worker, address, like));
        }
      }
    }
  }

  bool everywhere() const { return everywhere_; }
  std::byte* of(int worker, int index) const { return memory_[firsts_[worker] + index].get(); }

 private:
  bool everywhere_ = true;
  std::vector<int> firsts_;  // by worker, in `memory_`
  std::vector<std::shared_ptr<std::byte>> memory_;
};

}  // namespace lockstep::comm
