// What shards keep between two rounds of local steps: some tensors for each shard, twice. A round reads the one and writes the
// other, and a commit changes their roles. So a round that is not committed can be repeated.
//
// Where workers share memory, all have the tensors of all shards. Elsewhere, and on GPUs, a worker has those of its own shards
// (is_spread()). What a model on a GPU has on the host, such as a count of steps, is kept there, so nobody waits to read it.
// In asynchronous jobs all is kept on the host, because updates are computed there.
#pragma once

#include <lockstep/comm.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "torch/replica/flat_memory.h"
#include "torch/replica/parts.h"

namespace lockstep::steps {

// Threads:   one caller at a time.
// Blocking:  take_memory() and complete(), which are collective; at most the Comm's timeout.
// Failure:   Unavailable from take_memory() if there is too little memory.
// Ownership: owns the memory.
class KeptState {
 public:
  // Tensors like these, for so many shards, on this device. On a GPU those of the host stay there.
  KeptState(const std::vector<torch::Tensor>& like, int shards, Device device);

  // Memory of these workers. It has the values of before, and at the first time `first` for each shard. If the round goes on, it also
  // has what the round has written so far. Collective.
  void take_memory(replica::Parts& parts, const std::vector<torch::Tensor>& first, bool goes_on);

  // What the next round begins with, and what it leaves.
  std::vector<torch::Tensor> before(int shard) const { return tensors(*memory_, current_, shard); }
  std::vector<torch::Tensor> after(int shard) const {
    return tensors(*memory_, 1 - current_, shard);
  }
  void commit() { current_ = 1 - current_; }

  // Whether the tensors of a shard are known to its worker alone. complete(): every worker gets those of all shards.
  // Collective.
  bool is_spread() const { return is_spread_; }
  // Of workers that share the memory, one may write what all know.
  bool is_written_here() const { return is_written_here_; }
  void complete(Comm& comm);

 private:
  struct Place {
    torch::ScalarType type;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    std::size_t elements = 0;
    std::size_t first = 0;  // byte among those of a shard
    bool apart = false;     // on the host, and the rest on a GPU
  };
  struct Memory {
    replica::FlatMemory flat;
    torch::Tensor apart;  // bytes of the host
  };
  void fill(const Memory& memory, const std::vector<torch::Tensor>& first, bool goes_on) const;
  std::vector<torch::Tensor> tensors(const Memory& memory, int which, int shard) const;

  Device device_;
  std::vector<Place> places_;
  std::size_t bytes_ = 0;        // of a shard
  std::size_t bytes_apart_ = 0;  // the same
  int shards_;
  std::optional<Memory> memory_;  // nothing until it was taken
  bool is_spread_ = false;
  bool is_written_here_ = true;
  int current_ = 0;  // which of the two the next round reads
};

}  // namespace lockstep::steps
