// The buffers of a model (BatchNorm's statistics) while the shards of a step run.
//
// Every shard of a step begins with the buffers that the step before has left, wherever it runs; after the step all
// workers have the same again: the first shard's, or the mean over shards.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>
#include <lockstep/trainer.h>

#include <map>
#include <vector>

namespace lockstep::train {

// Threads:   one caller at a time.
// Blocking:  end_step(), which is collective, at most the Comm's timeout.
// Failure:   that of the collective.
// Ownership: shares the tensors.
class ShardBuffers {
 public:
  ShardBuffers(std::vector<NamedTensor> buffers, ShardBufferRule rule, int shards);

  void begin_step();
  void begin_shard();
  void end_shard(int shard);  // after its forward
  void end_step(Comm& comm);

 private:
  std::vector<std::byte> first_shards(Comm& comm);
  std::vector<std::byte> mean_of_shards(Comm& comm);

  std::vector<NamedTensor> buffers_;
  ShardBufferRule rule_;
  int shards_;
  std::vector<std::byte> before_;
  std::map<int, std::vector<std::byte>> after_;  // by hosted shard
};

}  // namespace lockstep::train
