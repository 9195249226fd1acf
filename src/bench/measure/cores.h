// Which cores a worker of a benchmark runs on: the same for every system.
#pragma once

#include <vector>

namespace lockstep::bench {

// The cores that this process may use, in order.
std::vector<int> allowed_cores();

// Worker `rank` of `workers` gets its part of the cores, as even as possible; workers that outnumber
// them share.
std::vector<int> cores_of(int rank, int workers, const std::vector<int>& cores);

// Keeps this process, and the threads it will start, on its part of the allowed cores.
void pin_worker(int rank, int workers);

}  // namespace lockstep::bench
