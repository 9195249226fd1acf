// Which cores a worker of a benchmark runs on: the same for every system.
#pragma once

#include <vector>

namespace lockstep::bench {

// The cores that this process may use, in order.
std::vector<int> allowed_cores();

// The cores of worker `rank`. Cores are divided as equally as possible. If there are more workers
// than cores, workers share them.
std::vector<int> cores_of(int rank, int workers, const std::vector<int>& cores);

// The number of threads of each worker, if nothing else is asked for: its part of the cores.
int threads_of_a_worker(int workers);

// Pins this process, and the threads that it will start, to its part of the allowed cores.
void pin_worker(int rank, int workers);

}  // namespace lockstep::bench
