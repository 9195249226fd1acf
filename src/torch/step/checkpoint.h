// Checkpoints: weights, optimizer state, position and properties of a job in one file.
//
//   tensors    those of the JobState: the model's parameters and buffers by name; the optimizer's as "optimizer/…"
//   metadata   lockstep.format, lockstep.step (steps done), the JobState's values as lockstep.NAME (optimizer_steps,
//              learning_rate), and the job's properties as lockstep.job.NAME
//
// Random generators are not in it, because every shard seeds its own from (job, step, phase, shard).
//
// Names of the file and of those beside it: formats/checkpoint_file.h.
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

// A property in the checkpoint of a directory; empty if there is no such property, or no checkpoint. Collective.
std::string checkpoint_property(Comm& comm, const std::string& directory, const std::string& name);

// The run directory. Only rank 0 reads and writes there; it tells the others what it found.
//
// Threads:   one caller at a time.
// Blocking:  on the disk. All calls except path() and take_lock() are collective. The constructor waits some seconds for
//            another job that may be about to end.
// Failure:   if rank 0 fails, every worker throws the same.
// Ownership: the Comm outlives it. The directory is locked until it goes, or until take_lock()'s caller drops the lock.
class CheckpointDirectory {
 public:
  enum class Use { kReads, kWrites };

  // To write, makes the directory and locks it, now: before time is spent on training. BadInput if it cannot be written,
  // if another job uses it, or if it has a checkpoint and `existing` is kRefuse.
  CheckpointDirectory(Comm& comm, std::string directory, ExistingCheckpoint existing, Use use);

  // After the Comm has become that of other workers: its rank 0 has the lock from here on.
  void rebind();

  std::string path() const;  // of the newest checkpoint

  // BadInput if a parameter is not finite, since no job could go on from that. The earlier file stays.
  void write(const JobState& state, std::int64_t step, const Properties& job);

  // Reads into the state of all workers. Returns the steps done; −1 if there is no checkpoint. BadInput if it is
  // damaged; Mismatch, with the name of the property, if it is of another model or job.
  std::int64_t read(JobState& state, const Properties& job);

  // The lock is the caller's from here on. Only rank 0 has one.
  std::optional<base::FileLock> take_lock();

 private:
  Comm& comm_;
  std::string directory_;
  Use use_;
  std::optional<base::FileLock> lock_;
  bool own_ = false;    // this job has written or read the checkpoint there
  bool given_ = false;  // the lock is take_lock()'s caller's
};

}  // namespace lockstep::steps
