// A program that uses MPI itself, built once for each MPI: `mpi_program_NAME FOLDER [single]`. It
// initialises MPI, with or without threads, connects over the engine mpi, and goes on with its own MPI.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <lockstep/comm.h>
#include <mpi.h>

#include <cstdio>

#include "tests/support/workers.h"

namespace {

int sum_over_both(const char* folder) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  lockstep::testing::FolderBootstrap bootstrap(folder, rank, size);
  try {
    auto comm = lockstep::connect("mpi", bootstrap, {.timeout = std::chrono::seconds(30)});
    std::int32_t ours = rank + 1;
    std::int32_t theirs = rank + 1;
    const auto work = comm.all_reduce({&ours, 1, lockstep::DType::kInt32});
    MPI_Allreduce(MPI_IN_PLACE, &theirs, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    work.wait();
    std::printf("%d and %d\n", ours, theirs);
    return 0;
  } catch (const lockstep::Error& error) {
    std::printf("refused: %s\n", error.what());
    return 0;
  }
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, argc > 2 ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &level);
  const int result = sum_over_both(argv[1]);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  std::puts("finalised");
  return result;
}
