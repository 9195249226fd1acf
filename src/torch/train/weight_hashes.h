// The log of hashes of a job: written, or compared with, step by step. formats/hash_log.h says what it holds.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "formats/hash_log.h"
#include "torch/step/checkpoint.h"

namespace lockstep::train {

// Each worker hashes a part of the tensors; rank 0 has the files.
//
// Threads:   one caller at a time.
// Blocking:  all members, which are collective; on the disk, and at most the Comm's timeout.
// Failure:   the same on every worker: BadInput for a log that cannot be read or written, Mismatch for one of another
//            job or with other bits, naming the step and the tensor.
// Ownership: shares the tensors; borrows the Comm.
class WeightHashes {
 public:
  struct Files {
    std::string write_to;      // empty: nowhere
    std::string compare_with;  // empty: nothing
  };
  WeightHashes(Comm& comm, std::vector<NamedTensor> tensors, Files files,
               const steps::Properties& job);

  // Before the first step of this run, `first` of the job. What a log that is written to holds of later steps is
  // dropped; one of another job, or another file, is refused and left as it is.
  void begin(std::int64_t first);

  // After a step.
  void record(std::int64_t step);

  // The step after the last that there is something to compare with.
  std::int64_t compared_end() const { return compared_end_; }
  std::int64_t compared() const { return compared_; }

 private:
  std::vector<std::uint64_t> hashes();
  std::int64_t read_known(std::int64_t first);
  void open(std::int64_t first);
  void write(std::int64_t step, const std::vector<std::uint64_t>& hashes);
  void compare(std::int64_t step, const std::vector<std::uint64_t>& hashes);

  Comm& comm_;
  std::vector<NamedTensor> tensors_;  // by name
  std::vector<int> hasher_;           // the worker that hashes each
  Files files_;
  steps::Properties job_;
  base::Fd file_;
  std::optional<formats::HashLog> known_;
  std::int64_t compared_end_ = 0;
  std::int64_t compared_ = 0;
};

}  // namespace lockstep::train
