// The hash log of a job, written or compared step by step. formats/hash_log.h says what it holds.
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

// Each worker hashes some of the tensors; rank 0 alone reads and writes the files. The Trainer owns it.
//
// Threads:   one caller at a time.
// Blocking:  begin() and record(), which are collective: on the disk, and at most the Comm's timeout.
// Failure:   the same on every worker. BadInput for a log that cannot be read or written; Mismatch for a log of another
//            job, or with other bits, which names the step and the tensor.
// Ownership: shares the tensors; borrows the Comm.
class WeightHashes {
 public:
  struct Files {
    std::string write_to;      // empty: no log is written
    std::string compare_with;  // empty: nothing is compared
  };
  WeightHashes(Comm& comm, std::vector<NamedTensor> tensors, Files files,
               const steps::Properties& job);

  // Call it before the first step of this run, which is step `first` of the job. Later steps in the log that is written
  // are dropped. A log of another job, or a file that is no log, is refused and stays as it is.
  void begin(std::int64_t first);

  // After a step.
  void record(std::int64_t step);

  // The step after the last one in the log that is compared with.
  std::int64_t compared_end() const { return compared_end_; }
  std::int64_t compared() const { return compared_; }  // how many steps were compared

 private:
  std::vector<std::uint64_t> hashes();
  std::int64_t read_known(std::int64_t first);
  void open(std::int64_t first);
  void write(std::int64_t step, const std::vector<std::uint64_t>& hashes);
  void compare(std::int64_t step, const std::vector<std::uint64_t>& hashes);

  Comm& comm_;
  std::vector<NamedTensor> tensors_;  // sorted by name
  std::vector<int> hasher_;           // the worker that hashes each
  Files files_;
  steps::Properties job_;
  base::Fd file_;
  std::optional<formats::HashLog> known_;  // the log to compare with; only on rank 0
  std::int64_t compared_end_ = 0;
  std::int64_t compared_ = 0;
};

}  // namespace lockstep::train
