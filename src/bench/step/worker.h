// One worker of `bench step`, inside the program that is linked with LibTorch.
#pragma once

#include <string>
#include <vector>

namespace lockstep::bench {

// With the arguments SYSTEM SHARDS MODEL BATCH OPTIMIZER SECONDS STEPS DEVICE PRECISION GPT_SIZE
// CONTEXT BUCKET_BYTES it prints one line and ends the process. The line is such as
//   {"rank":0,"pss_mb":210.5,"state_mb":80.3,"step_ms":[50.1,49.8]}
// or on cuda
//   {"rank":0,"buckets":9,"buckets_before_end":8,"graph_shards":null,"eager_shards":null,
//    "eager_reason":"","step_ms":[5.1,4.9]}
//
// With the argument look-for-cuda it ends with 0 if this process can train on a GPU, else with 1
// and the reason on standard output.
[[noreturn]] void step_worker(const std::vector<std::string>& words);

}  // namespace lockstep::bench
