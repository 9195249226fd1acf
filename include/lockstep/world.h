// The workers that train together: the handle that a program holds.
#pragma once

#include <lockstep/comm.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lockstep {

namespace control {
struct Joining;
class Announcements;
class Inventory;
}  // namespace control

struct JoinOptions {
  // The name of the engine. Empty: the variable LOCKSTEP_ENGINE; without it, the best engine that
  // this build has for these workers.
  std::string engine;

  // "cpu" or "cuda". With "cuda" each worker has the GPU whose number is its local rank. Empty: the
  // variable LOCKSTEP_DEVICE; without it, "cuda" if the engine nccl is asked for, else "cpu".
  std::string device;

  // How long join() waits for the other workers; also the timeout of every later operation. Zero:
  // the variable LOCKSTEP_TIMEOUT (seconds); without it, 300 s.
  std::chrono::milliseconds timeout{0};
};

// The world that this process belongs to.
//
// Threads:   one caller at a time.
// Blocking:  join() returns, or throws, by its timeout.
// Failure:   PeerLost, Timeout, Mismatch, BadInput or Unavailable; see errors.h.
// Ownership: a movable handle. Its connections end when it is destroyed.
class World {
 public:
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  int rank() const;
  int size() const;
  bool leader() const { return rank() == 0; }

  // This worker's number among the workers of its host, and how many those are.
  int local_rank() const;
  int local_size() const;

  // Goes up when the membership changes. rank() and size() belong to one generation.
  std::uint64_t generation() const;

  // What started this worker: "lockstep", "torchrun", "openmpi", "mpich", "slurm", "environment" (variables
  // set by hand), "program" (see over()) or "alone".
  const std::string& launcher() const;

  // The device for this worker's tensors; it converts to a torch::Device. If it is a GPU, it is
  // also the current GPU of the thread that joined.
  Device device() const;

  Comm& comm();

  // Whether workers may leave and join while the job runs: `lockstep run --min-workers` or
  // --max-restarts. A Job then goes on without a worker that was lost.
  bool elastic() const;

  // How many workers wait to join, or are to leave because the job was given fewer.
  int newcomers() const;

  // For the layers above: this job looks at newcomers() between two batches, and at most so many
  // workers can train. Only then can `lockstep resize` change their number.
  void allow_workers(int most);

  // Goes on in the next generation, with the workers that are there: comm(), rank() and size() are
  // new. For the layers above, which then move what was made in this world (inventory.h).
  // `in_batch`: no newcomer can come in here. Collective among the workers that survive.
  void regroup(bool in_batch);

  // Whether the others were training when this worker joined. It must not wait for them before
  // Job::batches() or Trainer::run(): they are not at that place of the program any more.
  bool joined_later() const;

  // Whether all workers of before have died. The job then goes on from the memory that they left, or
  // from its checkpoint, if there is either.
  bool restarted() const;

  // After regroup(): so many of the first ranks were in the generation before.
  int survivors() const;

  // A Comm with its own order of operations. Every worker opens its channels in the same order.
  Comm open_channel();

  // For the layers above: see src/control/announcements.h and inventory.h.
  const std::shared_ptr<control::Announcements>& announcements();
  const std::shared_ptr<control::Inventory>& inventory();

  // Makes a world from workers that the program has connected itself, such as threads.
  static World over(Comm comm, Device device = {});

 private:
  friend struct control::Joining;
  struct State;
  explicit World(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// Joins the world that the launcher describes in the environment. Launchers are lockstep run,
// torchrun, mpirun and srun. On one host nothing else is needed. On several hosts set
// LOCKSTEP_RENDEZVOUS (host:port of rank 0) and LOCKSTEP_SECRET_FILE (a file that only its owner
// can read). Without a launcher the result is a world of one worker.
World join(const JoinOptions& options = {});

// Makes a world whose workers are threads of this process. Runs `body` on each thread, with that
// worker's World, and returns when all have ended. For tests, and to try something without a
// launcher. LibTorch has one random generator per process, so a seed that one worker sets changes
// the numbers of the others. Throws BadInput or Unavailable if there cannot be so many workers.
// Else throws what the first worker that failed threw.
void run_threads(int workers, const std::function<void(World&)>& body,
                 std::chrono::milliseconds timeout = std::chrono::seconds(300));

}  // namespace lockstep
