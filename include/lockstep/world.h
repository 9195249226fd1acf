// The workers training together: the handle a program holds.
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
  // The engine; empty: LOCKSTEP_ENGINE, else the best that this build has for these workers.
  std::string engine;

  // "cpu", or "cuda": a GPU for each worker, the one with its local rank for a number. Empty:
  // LOCKSTEP_DEVICE, else "cuda" where the engine nccl is asked for, else "cpu".
  std::string device;

  // How long to wait for the others, and the timeout of every later operation.
  // Zero: LOCKSTEP_TIMEOUT (seconds), else 300 s.
  std::chrono::milliseconds timeout{0};
};

// The world that this process belongs to.
//
// Threads:   one caller at a time.
// Blocking:  join() returns, or throws, by its timeout.
// Failure:   PeerLost, Timeout, Mismatch, BadInput or Unavailable; see errors.h.
// Ownership: a movable handle; the connections end with it.
class World {
 public:
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  int rank() const;
  int size() const;
  bool leader() const { return rank() == 0; }

  // This worker's place on its host.
  int local_rank() const;
  int local_size() const;

  // Goes up when the membership changes; rank and size belong to it.
  std::uint64_t generation() const;

  // Who started us: "lockstep", "torchrun", "openmpi", "slurm", "environment" (variables set by
  // hand), "program" (see over()) or "alone".
  const std::string& launcher() const;

  // Where this worker's tensors belong; converts to a torch::Device. A GPU is also the current one
  // of the thread that joined.
  Device device() const;

  Comm& comm();

  // A Comm with an order of its own. Every worker opens its channels in the same order.
  Comm open_channel();

  // For the layers above: see src/control/announcements.h and inventory.h.
  const std::shared_ptr<control::Announcements>& announcements();
  const std::shared_ptr<control::Inventory>& inventory();

  // A world over workers that were connected otherwise, such as threads of this process.
  static World over(Comm comm, Device device = {});

 private:
  friend struct control::Joining;
  struct State;
  explicit World(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Joins the world that the launcher describes in the environment: lockstep run, torchrun, mpirun or
// srun. On one host nothing else is needed; on several, LOCKSTEP_RENDEZVOUS (host:port of rank 0)
// and LOCKSTEP_SECRET_FILE (a file that only its owner can read). Without a launcher: a world of
// one.
World join(const JoinOptions& options = {});

// A world of threads of this process, in one call: runs `body` on each, with a world of its own, and returns when all have
// ended. For tests and for trying things out without a launcher. LibTorch's random numbers belong to the process: seeds
// that workers set disturb each other's. BadInput and Unavailable for workers that cannot be; else throws what the first
// worker that failed threw.
void run_threads(int workers, const std::function<void(World&)>& body,
                 std::chrono::milliseconds timeout = std::chrono::seconds(300));

}  // namespace lockstep
