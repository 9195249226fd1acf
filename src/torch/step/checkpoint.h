// The state of a training run in one file: weights, optimizer, position and job.
//
//   tensors    those of the JobState: the model's parameters and buffers by name; the optimizer's as "optimizer/…"
//   metadata   lockstep.format, lockstep.step (steps done), the JobState's values as lockstep.NAME (optimizer_steps,
//              learning_rate), and the job's properties as lockstep.job.NAME
//
// Random numbers need no state: those of a shard are seeded from (job, step, shard).
//
// Where it lies, and what lies beside it: formats/checkpoint_file.h.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/job.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/file_lock.h"
#include "torch/step/job_state.h"

namespace lockstep::steps {

using Properties = std::map<std::string, std::string>;

// A property of the job of the checkpoint in a directory; empty if there is none. Collective.
std::string checkpoint_property(Comm& comm, const std::string& directory, const std::string& name);

// The directory of a job's checkpoints, which belongs to the job until it ends.
//
// Threads:   one caller at a time.
// Blocking:  on the disk; the constructor a few seconds for another job that may be about to end.
// Failure:   rank 0 alone works there, and every worker fails alike. All calls are collective.
// Ownership: the Comm outlives it.
class CheckpointDirectory {
 public:
  enum class Use { kReads, kWrites };

  // To write: makes the directory and locks it, before time is spent on training. BadInput when it cannot be written, when
  // another job is at work there, or when there is a checkpoint that nobody said what to do with.
  CheckpointDirectory(Comm& comm, std::string directory, ExistingCheckpoint existing, Use use);

  // The Comm is another: its rank 0 works there now.
  void rebind();

  std::string path() const;  // of the newest checkpoint

  // BadInput, and the earlier file stays, when a parameter is not finite: nobody could go on from it.
  void write(const JobState& state, std::int64_t step, const Properties& job);

  // Gives what it read to all. Returns the steps done; −1 when there is no checkpoint. BadInput when it is
  // damaged, Mismatch when it is of another model or job, naming the property.
  std::int64_t read(JobState& state, const Properties& job);

  // The caller's now, who gives the directory free by dropping it. None on other workers than rank 0.
  std::optional<base::FileLock> take_lock();

 private:
  Comm& comm_;
  std::string directory_;
  Use use_;
  std::optional<base::FileLock> lock_;
  bool own_ = false;  // the checkpoint there is of this job
};

}  // namespace lockstep::steps
