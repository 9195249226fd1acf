// One worker of an MPI in `bench allreduce`. It is built once for each MPI that is found, with the
// flags of its compiler wrapper, and is started by its own mpirun: `lockstep-bench-openmpi SECONDS
// SAMPLES BYTES…`.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include "bench/allreduce/measure.h"
#include "bench/measure/cores.h"

namespace lockstep::bench {
namespace {

// The number in the first of these variables that is set. MPI itself says rank and size only after
// MPI_Init, which starts threads and touches memory: too late to pin.
int number_in(std::initializer_list<const char*> variables, int otherwise) {
  for (const char* variable : variables) {
    if (const char* text = std::getenv(variable)) return std::atoi(text);
  }
  return otherwise;
}

class Mpi : public Reducer {
 public:
  Mpi() {
    MPI_Init(nullptr, nullptr);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~Mpi() override {
    MPI_Free_mem(memory_);
    MPI_Finalize();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  float* memory(std::size_t bytes) override {
    // Rounded to whole pages, because MPI_Alloc_mem promises no alignment.
    constexpr std::size_t kPage = 4096;
    std::size_t room = bytes + kPage;
    MPI_Alloc_mem(static_cast<MPI_Aint>(room), MPI_INFO_NULL, &memory_);
    void* aligned = memory_;
    return static_cast<float*>(std::align(kPage, bytes, aligned, room));
  }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  void all_reduce(float* data, std::size_t count) override {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void max(std::span<double> values) override {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
  }

 private:
  int rank_ = 0;
  int size_ = 1;
  void* memory_ = nullptr;
};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep::bench;  // NOLINT: this is the program
  pin_worker(number_in({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0),
             number_in({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 1));
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const MeasureOptions options = parse_measure_options(words);
    Mpi mpi;
    measure(mpi, options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    std::_Exit(1);
  }
}
