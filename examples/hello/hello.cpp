// The shortest program in lockstep: every worker contributes its rank, all receive the sum, in the
// same bits.
//
//   lockstep run -n 4 -- ./hello
#include <lockstep/lockstep.h>

#include <cstdio>
#include <vector>

int main() {
  try {
    lockstep::World world = lockstep::join();  // alone when nobody launched us
    std::vector<float> data(1000, static_cast<float>(world.rank()));
    lockstep::Buffer buffer{data.data(), data.size(), lockstep::DType::kFloat32};

    lockstep::Work work = world.comm().all_reduce(buffer);  // runs while this thread goes on
    work.wait();

    std::printf("rank %d of %d: the sum of all ranks is %g\n", world.rank(), world.size(), data[0]);
    return 0;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "hello: %s: %s\n", lockstep::name(error.kind()), error.what());
    return 1;
  }
}
