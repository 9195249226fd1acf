// What a worker of `bench step` trains: the same for every system.
#pragma once

#include <lockstep/data.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch/models/models.h"

namespace lockstep::bench {

// No weight decay, which is the default of every optimizer except AdamW. lockstep_bench_ddp.py and
// lockstep_bench_cuda.py have the same numbers.
inline constexpr double kLearningRate = 1e-3;
inline constexpr double kMomentum = 0.9;
inline constexpr double kWeightDecayOfAdamW = 1e-2;

struct StepJob {
  std::string
      system;  // plain, plain-zeroed, plain-flat, drop-in, trainer, trainer-unchecked; on cuda
               // plain, drop-in, drop-in-forced, trainer, trainer-unchecked, trainer-deterministic
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

// Reads the arguments SYSTEM SHARDS MODEL BATCH OPTIMIZER SECONDS STEPS DEVICE PRECISION GPT_SIZE
// CONTEXT BUCKET_BYTES. Throws std::exception for others.
StepJob parse_step_job(const std::vector<std::string>& words);

// The same values on every worker. Without dropout, because systems draw different random numbers
// for it.
std::shared_ptr<models::Net> make_net(const StepJob& job, torch::Device device);

// Random samples, different on every worker.
Batch make_batch(const StepJob& job, int rank, torch::Device device);

}  // namespace lockstep::bench
