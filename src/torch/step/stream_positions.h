// Where the streams of a job are, as checkpoints keep it.
#pragma once

#include <lockstep/comm.h>

#include <cstdint>
#include <memory>

#include "plan/position.h"
#include "plan/tree.h"
#include "torch/data/streams.h"

namespace lockstep::steps {

// The streams of a job, and a table with a row for each shard: the stream's last mark before the job's position; the pass
// is -1 if there is none. A job that goes on begins to read there, so that the sample at the mark can be compared.
//
// Threads:   one caller at a time; loader threads may read the streams meanwhile.
// Blocking:  note() is collective, and waits for a read that is under way.
// Failure:   none of its own.
// Ownership: shares the streams and the table.
class StreamPositions {
 public:
  explicit StreamPositions(int shards);

  // The table, in memory that the job's state shares. read() gives its rows to the streams.
  const torch::Tensor& table() const { return table_; }
  void read(const data::StreamReader& streams) const;

  // Fills in the rows of all shards for a job that goes on at this step.
  void note(const data::StreamReader& streams, const plan::Batches& plan, std::int64_t step,
            plan::ShardRange hosted, Comm& comm);

 private:
  torch::Tensor table_;
};

}  // namespace lockstep::steps
