// One worker of `bench step`, inside the program that is linked with LibTorch.
#pragma once

#include <string>
#include <vector>

namespace lockstep::bench {

// SYSTEM SHARDS MODEL BATCH OPTIMIZER SECONDS STEPS. Prints one line, such as
// {"rank":0,"pss_mb":210.5,"state_mb":80.3,"step_ms":[50.1,49.8]}, and ends the process.
[[noreturn]] void step_worker(const std::vector<std::string>& words);

}  // namespace lockstep::bench
