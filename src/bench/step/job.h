// What a worker of `lockstep bench step` trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep::bench {

// What is trained: the same for every system.
struct StepJob {
  // plain, plain-barrier, plain-zeroed, plain-flat, drop-in, trainer, trainer-unchecked, step; on
  // cuda plain, drop-in, drop-in-forced, trainer, trainer-unchecked, trainer-deterministic
  std::string system;
  int shards = 0;  // at least as many as workers
  std::string model;
  std::int64_t batch = 0;  // of each shard
  std::string optimizer;   // sgd, sgd-momentum, adam, adamw
  double seconds = 0;
  std::int64_t steps = 0;  // 0: as many as `seconds` allows
  std::string device;      // cpu, cuda
  std::string precision;   // float32, bf16, bf16-held
  std::string gpt_size;
  std::int64_t context = 0;  // of gpt
  std::size_t bucket_bytes = 0;

  bool on_cuda() const { return device == "cuda"; }
};

}  // namespace lockstep::bench
