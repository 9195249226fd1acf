// A reduction by messages whose bytes a codec makes fewer. For each part of a bucket:
//
//   to the owners   every worker encodes its shards, and sends each worker the blocks that this one owns
//   to all          an owner adds up what all shards have sent, encodes the average, and sends it to all workers
//
// Both are under way for several parts at a time. It gives the bits of OnePassReduction.
#pragma once

#include <deque>
#include <vector>

#include "torch/replica/encoding.h"
#include "torch/replica/reduction.h"

namespace lockstep::replica {

class EncodedReduction : public Reduction {
 public:
  EncodedReduction(Comm& comm, Banks& banks, HostBlockEncoding& encoding);

  void launch(const plan::Bucket& bucket, const Sharded* sharded,
              const ReduceOptions& rule) override;
  void wait(Met met) override;

 private:
  // A part on its way. It does not move in memory: messages are received into it.
  struct Flight {
    plan::BlockRange blocks;
    const Sharded* sharded = nullptr;  // null: one gradient of each worker
    std::vector<std::byte> sent;       // by worker, then by hosted shard
    std::vector<std::vector<std::byte>>
        heard;  // by worker: its shards' encoded blocks that this one owns
    std::vector<Work> sends;
    std::vector<Work> receives;
    std::vector<std::byte> averages;  // of all blocks
    bool averaged = false;
    std::vector<Work> to_all;
  };

  plan::BlockRange mine(const Flight& flight) const {
    return own_blocks(flight.blocks, owners_.rank(), owners_.size());
  }
  std::byte* memory_of(const Flight& flight, int hosted) const;
  void send_shards(Flight& flight, double factor);
  void receive_shards(Flight& flight);
  const void* operand(const Flight& flight, int worker, int hosted, std::size_t block,
                      float* row) const;
  void average(Flight& flight);
  void send_average(Flight& flight);
  void finish(const Flight& flight);
  void go_on();

  Banks& banks_;
  HostBlockEncoding& encoding_;
  int shards_ = 0;  // of the run under way
  std::deque<Flight> flights_;
  // Last, so that they go first: they end operations that use the flights. Two, because a worker may send the average of
  // one part before or after the shards of the next.
  Comm owners_;
  Comm all_;
};

}  // namespace lockstep::replica
