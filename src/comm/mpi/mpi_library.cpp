#include "comm/mpi/mpi_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <lockstep/errors.h>

#include "base/environment.h"

namespace lockstep::comm {
namespace {

struct KnownMpi {
  MpiKind kind;
  const char* name;
  const char* package;
  std::unique_ptr<MpiCalls> (*load)();  // null: not in this build
};

constexpr KnownMpi kMpis[] = {
#if defined(LOCKSTEP_HAS_openmpi)
    {MpiKind::kOpenMpi, "OpenMPI", "libopenmpi-dev", openmpi_calls},
#else
    {MpiKind::kOpenMpi, "OpenMPI", "libopenmpi-dev", nullptr},
#endif
#if defined(LOCKSTEP_HAS_mpich)
    {MpiKind::kMpich, "MPICH", "libmpich-dev", mpich_calls},
#else
    {MpiKind::kMpich, "MPICH", "libmpich-dev", nullptr},
#endif
};

std::optional<MpiKind> loaded_mpi() {
  if (::dlsym(RTLD_DEFAULT, "MPI_Init_thread") == nullptr) return std::nullopt;
  return ::dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world") != nullptr ? MpiKind::kOpenMpi
                                                                 : MpiKind::kMpich;
}

}  // namespace

std::optional<MpiKind> mpi_of(const MpiSigns& signs) {
  if (signs.loaded) return signs.loaded;
  // Slurm sets PMIX_RANK or PMI_RANK, as srun --mpi says; Cray's launchers set the last two.
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"}) {
    if (signs.environment(variable)) return MpiKind::kOpenMpi;
  }
  for (const char* variable : {"PMI_RANK", "PALS_RANKID", "ALPS_APP_PE"}) {
    if (signs.environment(variable)) return MpiKind::kMpich;
  }
  return std::nullopt;
}

bool mpi_is_there() {
  return mpi_of({loaded_mpi(), base::environment}).has_value();
}

bool mpi_in_build() {
  for (const KnownMpi& mpi : kMpis) {
    if (mpi.load != nullptr) return true;
  }
  return false;
}

std::unique_ptr<MpiCalls> load_mpi() {
  const MpiSigns signs{loaded_mpi(), base::environment};
  const auto kind = mpi_of(signs);
  for (const KnownMpi& mpi : kMpis) {
    if (!kind && mpi.load != nullptr) return mpi.load();  // a world of one, or refused later
    if (kind != mpi.kind) continue;
    if (mpi.load != nullptr) return mpi.load();
    throw Unavailable(fmt::format(
        "{} uses {}, which this build of Lockstep does not know; install {} and build again",
        signs.loaded ? "this program" : "the launcher", mpi.name, mpi.package));
  }
  throw Unavailable(
      "this build has no mpi engine; install OpenMPI (libopenmpi-dev) or MPICH (libmpich-dev) and "
      "build again");
}

}  // namespace lockstep::comm
