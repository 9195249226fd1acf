#include "comm/mpi/mpi_engine.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/arena/offer.h"
#include "comm/core/said_by_all.h"
#include "comm/mpi/mpi_library.h"
#include "comm/mpi/mpi_link.h"
#include "comm/mpi/mpi_process.h"

namespace lockstep::comm {
namespace {

void require_one_library(Bootstrap& bootstrap, const std::string& own, Deadline deadline) {
  const auto names = said_by_all(bootstrap, "mpi/library", own, deadline);
  const auto other =
      std::find_if(names.begin(), names.end(), [&](const auto& name) { return name != own; });
  if (other == names.end()) return;
  const int rank = static_cast<int>(other - names.begin());
  throw Mismatch(fmt::format("rank {} uses {} and rank {} uses {}; start all workers with the "
                             "launcher of one MPI",
                             bootstrap.rank(), own, rank, *other),
                 {rank});
}

// MPI would make a world of one of each process, and leave files behind if it is killed then.
void require_launcher(const Bootstrap& job, bool there) {
  if (job.size() == 1 || there) return;
  throw Unavailable(fmt::format(
      "no launcher of MPI has started rank {}; start the workers with mpirun or srun, or "
      "use the engine tcp",
      job.rank()));
}

// A launcher that MPI does not know leaves every process alone in an MPI world of its own.
void require_same_world(const Bootstrap& job, const MpiWorld& mpi, const char* library) {
  if (mpi.rank == job.rank() && mpi.size == job.size()) return;
  throw Unavailable(fmt::format(
      "rank {} of {} of this job is rank {} of {} to {}; start the workers with its mpirun, or "
      "srun, or use the engine tcp",
      job.rank(), job.size(), mpi.rank, mpi.size, library));
}

std::shared_ptr<MpiCommunicator> form(MpiCalls& mpi, Deadline deadline) {
  auto communicator = mpi.duplicate_world();
  while (!communicator->formed()) {
    if (deadline.expired())
      throw Timeout("MPI has not made a communicator of all workers: some have not come");
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // MPI has nothing to wait for
  }
  return communicator;
}

}  // namespace

bool mpi_built() {
  return mpi_in_build();
}

// Everybody says what it uses, then that it has started, before MPI's first step together: a worker
// that cannot take part tells the others through the bootstrap.
std::shared_ptr<Link> connect_mpi(Bootstrap& bootstrap, const CommOptions& options) {
  const auto deadline = Deadline::after(options.timeout);
  const bool there = mpi_is_there();  // before a library is loaded
  MpiCalls& mpi = mpi_of_process();
  require_one_library(bootstrap, mpi.name(), deadline);
  require_launcher(bootstrap, there);
  require_same_world(bootstrap, start_mpi(deadline), mpi.name());
  const std::string here = host_identity();
  const auto hosts = said_by_all(bootstrap, "mpi/host", here, deadline);
  const auto neighbours = std::count(hosts.begin(), hosts.end(), here);
  return make_mpi_link({bootstrap.rank(), bootstrap.size(),
                        neighbours > ::sysconf(_SC_NPROCESSORS_ONLN), form(mpi, deadline),
                        &mpi_process()});
}

}  // namespace lockstep::comm
