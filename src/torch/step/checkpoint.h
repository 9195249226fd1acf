// Checkpoints: weights, optimizer state, position and properties of a job in one file.
//
//   tensors    those of the JobState: the model's parameters and buffers by name; the optimizer's as "optimizer/…"
//   metadata   lockstep.format, lockstep.step (steps done), the JobState's values as lockstep.NAME (optimizer_steps,
//              learning_rate), and the job's properties as lockstep.job.NAME
//
// Random generators are not in it, because every shard seeds its own from (job, step, phase, shard).
//
// A checkpoint costs the job one copy of the state, in memory of rank 0. A thread of rank 0 writes the copy to the disk,
// while the job trains:
//
//   begin     rank 0 copies. Nobody goes on before that, so no update writes to what is copied
//   finish    the write has ended; all workers throw if it failed
//
// Names of the files: formats/checkpoint_file.h.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/job.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_lock.h"
#include "torch/step/job_state.h"

namespace lockstep::steps {

using Properties = std::map<std::string, std::string>;

// A property in the checkpoint of a directory; empty if there is no such property, or no checkpoint. Collective.
std::string checkpoint_property(Comm& comm, const std::string& directory, const std::string& name);

// What a job wants of its run directory.
struct CheckpointRules {
  enum class Use { kReads, kWrites };
  std::string directory;
  ExistingCheckpoint existing = ExistingCheckpoint::kRefuse;
  Use use = Use::kWrites;
  int keep = 1;        // how many checkpoints
  double every_s = 0;  // 0: no clock decides
};

// The run directory. Only rank 0 reads and writes there; it tells the others what it found.
//
// Threads:   one caller at a time; the thread that writes stays inside.
// Blocking:  on the disk, except begin(), which copies. All calls except the accessors, is_due(), has_ended() and
//            take_lock() are collective. The constructor waits some seconds for another job that may be about to end, the
//            destructor for the write under way.
// Failure:   if rank 0 fails, every worker throws the same. If a write has failed, or its worker was lost, that checkpoint
//            counts as never begun. A failure that nobody is left to be told of goes to the log.
// Ownership: the Comm outlives it. The directory is locked until it goes, or until take_lock()'s caller drops the lock,
//            and as long as a write is under way.
class CheckpointDirectory {
 public:
  // To write, makes the directory and locks it, now: before time is spent on training. BadInput if it cannot be written,
  // if another job uses it, or if it has a checkpoint and `existing` is kRefuse.
  CheckpointDirectory(Comm& comm, CheckpointRules rules);
  ~CheckpointDirectory();
  CheckpointDirectory(const CheckpointDirectory&) = delete;
  CheckpointDirectory& operator=(const CheckpointDirectory&) = delete;

  // After the Comm has become that of other workers: its rank 0 has the lock from here on. All workers agree on what is
  // written, and on whether a write is still under way.
  void rebind();

  // Positions: of the last checkpoint that was begun, and of the last that is known to be on the disk; −1: none.
  std::int64_t begun() const { return begun_; }
  std::int64_t on_disk() const { return on_disk_; }
  bool is_under_way() const { return begun_ != on_disk_; }
  std::string path() const { return path_; }  // of the last on the disk; empty: none

  // On rank 0, if a clock decides: whether it is time for the next one. Counts from the first call, or the last begin().
  bool is_due();
  // On rank 0: the write under way has ended, and finish() will not wait.
  bool has_ended() const;

  // Only if no write is under way.
  void begin(const JobState& state, std::int64_t step, const Properties& job);
  // BadInput if a parameter is not finite, since no job could go on from that. Earlier checkpoints stay.
  void finish();

  // Reads into the state of all workers. Returns the steps done; −1 if there is no checkpoint. BadInput if all are
  // damaged; Mismatch, with the name of the property, if it is of another model or job.
  std::int64_t read(JobState& state, const Properties& job);

  // The lock is the caller's from here on. Only rank 0 has one.
  std::shared_ptr<const base::FileLock> take_lock();

 private:
  using Clock = std::chrono::steady_clock;
  void agree();

  Comm& comm_;
  CheckpointRules rules_;
  std::shared_ptr<const base::FileLock> lock_;
  bool given_ = false;                         // the lock is take_lock()'s caller's
  std::weak_ptr<const base::FileLock> taken_;  // by it; a write holds it, too
  std::int64_t begun_ = -1;
  std::int64_t on_disk_ = -1;
  std::string path_;
  std::optional<Clock::time_point> since_;  // of the clock
  std::vector<NamedTensor> copies_;         // on rank 0; the write reads them
  std::future<void> write_;                 // on rank 0, until finish()
};

}  // namespace lockstep::steps
