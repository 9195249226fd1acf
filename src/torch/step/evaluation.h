// Evaluation of a model by shard.
#pragma once

#include <lockstep/job.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "torch/step/generation.h"

namespace lockstep::steps {

// Modules in eval(), and no gradients, as long as it lives; then each is as it was.
class EvaluationScope {
 public:
  explicit EvaluationScope(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  torch::NoGradGuard no_grad_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>>
      before_;  // which were in train()
};

// Tensors that are what they were when it ends.
class UnchangedScope {
 public:
  explicit UnchangedScope(std::vector<torch::Tensor> tensors);
  ~UnchangedScope();
  UnchangedScope(const UnchangedScope&) = delete;
  UnchangedScope& operator=(const UnchangedScope&) = delete;

 private:
  std::vector<torch::Tensor> tensors_;
  std::vector<torch::Tensor> before_;
};

struct EvaluationWork {
  const Dataset& dataset;
  const std::function<Score(const Batch&)>& score;
  std::int64_t most = 0;   // samples of a batch
  std::uint64_t seed = 0;  // of samples
  Device device;           // for batches
};

// Over the whole data set. What comes of it depends on the number of shards and not on who hosts them. Collective.
Evaluation evaluate(Generation& generation, const EvaluationWork& work);

}  // namespace lockstep::steps
