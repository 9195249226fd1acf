// Worlds for tests of the engine mpi: N workers as processes that the launcher of an MPI starts.
//
// The launcher starts this very program again, N times, with a filter for the test that runs now. Each
// of these processes runs the test again. Worlds that come before the wanted one are passed over;
// for the wanted one it is a worker, and the process ends with it. The first process collects how the
// workers ended, and what they found wrong.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/workers.h"

namespace lockstep::testing {

// The names of the engine mpi in these tests: "mpi_openmpi", "mpi_mpich". None if there is no launcher.
std::vector<std::string> mpi_engines();

// As run_workers(), with a Bootstrap in place of the Comm.
std::vector<Outcome> run_mpi_workers(const WorldSpec& spec,
                                     const std::function<void(Bootstrap&)>& body);

// Command words that start `size` processes, with what a test needs: as root, with more processes
// than cores, and with a folder for the launcher's own files. OpenMPI's launchers would remove a
// folder of all of them under each other's feet, and leave it behind when they are killed.
std::vector<std::string> mpi_launch(const std::string& engine, int size, const std::string& folder);

// A number that all workers of a world count together, threads or processes. Make it in the test's
// own thread, before the world.
class Tally {
 public:
  Tally();
  ~Tally();
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;
  int operator++() { return ++*count_; }
  void set(int count) { *count_ = count; }
  int load() const { return count_->load(); }

 private:
  std::atomic<int>* count_;
};

}  // namespace lockstep::testing
