#include "bench/measure/cores.h"

#include <sched.h>

#include <algorithm>

namespace lockstep::bench {

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

std::vector<int> cores_of(int rank, int workers, const std::vector<int>& cores) {
  const int count = static_cast<int>(cores.size());
  if (workers >= count) return {cores[static_cast<std::size_t>(rank % count)]};
  return {cores.begin() + rank * count / workers, cores.begin() + (rank + 1) * count / workers};
}

int threads_of_a_worker(int workers) {
  return std::max(static_cast<int>(allowed_cores().size()) / workers, 1);
}

void pin_worker(int rank, int workers) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores_of(rank, workers, allowed_cores())) CPU_SET(core, &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

}  // namespace lockstep::bench
