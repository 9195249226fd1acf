// A worker that joins its world, adds one number over it, and says what came out and how long
// joining took.
#include <lockstep/lockstep.h>

#include <chrono>
#include <cstdio>

int main() {
  try {
    const auto start = std::chrono::steady_clock::now();
    auto world = lockstep::join();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    float value = static_cast<float>(world.rank() + 1);
    world.comm().all_reduce({.data = &value, .count = 1}).wait();
    std::printf("joined %s rank %d of %d sum %g\n", world.launcher().c_str(), world.rank(),
                world.size(), value);
    std::printf("took %.0f\n", took.count());
    return 0;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.kind() == lockstep::ErrorKind::kUnavailable ? 77 : 1;
  }
}
