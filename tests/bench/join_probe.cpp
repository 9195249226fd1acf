// Joins, meets everybody once, and ends: what start_bench times.
#include <lockstep/lockstep.h>

#include <cstdio>

int main() {
  try {
    lockstep::World world = lockstep::join();
    world.comm().barrier().wait();
    return 0;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "join_probe: %s\n", error.what());
    return 1;
  }
}
