// Evaluation of a model by shard.
#include <lockstep/errors.h>
#include <lockstep/job.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "control/faults.h"
#include "plan/sampler.h"
#include "plan/tree.h"
#include "torch/data/reader.h"
#include "torch/data/streams.h"
#include "torch/step/arithmetic.h"
#include "torch/step/generation.h"
#include "torch/step/job_core.h"

namespace lockstep::steps {
namespace {

// As long as it lives modules are in eval(), and nothing is recorded for backward. Then each module is as it was.
class EvaluationScope {
 public:
  explicit EvaluationScope(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
    for (const auto& root : modules) {
      for (const auto& module : root->modules(/*include_self=*/true))
        before_.emplace_back(module, module->is_training());
      root->eval();
    }
  }
  // In the order of the constructor, the outermost first: train() of a module is also that of its children.
  ~EvaluationScope() {
    for (const auto& [module, trains] : before_) module->train(trains);
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  torch::NoGradGuard no_grad_;
  // Each module, and whether it was in train().
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;
};

// Gives tensors their old values when it ends: a model may count something even in eval().
class UnchangedScope {
 public:
  explicit UnchangedScope(std::vector<torch::Tensor> tensors) : tensors_(std::move(tensors)) {
    for (const torch::Tensor& tensor : tensors_) before_.push_back(tensor.detach().clone());
  }
  ~UnchangedScope() {
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].data().copy_(before_[i]);
  }
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

Batch moved(const Batch& batch, Device device) {
  const auto move = [&](const torch::Tensor& tensor) {
    return tensor.defined() ? tensor.to(torch::Device(device)) : tensor;
  };
  return {move(batch.data), move(batch.target), batch.samples};
}

Score evaluate_shard(const EvaluationWork& work, int shard, int shards) {
  Score sum;
  const auto own = plan::evaluation_samples(work.dataset.size(), shard, shards);
  const auto most = static_cast<std::size_t>(work.most);
  for (std::size_t first = 0; first < own.size(); first += most) {
    const std::size_t count = std::min(most, own.size() - first);
    const auto samples = samples_of(std::span(own).subspan(first, count), /*epoch=*/0, work.seed);
    const Batch batch = moved(data::read(work.dataset, samples), work.device);
    Score score;
    say_where({"score", -1, shard}, [&] { score = work.score(batch); });
    sum.loss += score.loss;
    sum.correct += score.correct;
    sum.predictions += score.predictions;
  }
  return sum;
}

// Goes over the data set by shard, so that batches and the order of addition depend on the job alone. `sums` has the
// losses by shard, and last two counts: whole numbers, which may be added in any order.
Evaluation evaluate_all(Generation& generation, const EvaluationWork& work) {
  const auto shards = static_cast<std::size_t>(generation.shards);
  std::vector<double> sums(shards + 2);
  for (int shard = generation.hosted.begin; shard < generation.hosted.end; ++shard) {
    const Score score = evaluate_shard(work, shard, generation.shards);
    sums[static_cast<std::size_t>(shard)] = score.loss;
    sums[shards] += static_cast<double>(score.correct);
    sums[shards + 1] += static_cast<double>(score.predictions);
  }
  generation.control.all_reduce({sums.data(), sums.size(), DType::kFloat64}).wait();
  const double loss = plan::tree_sum(std::span(sums).first(shards));
  return {loss / sums[shards + 1], sums[shards] / sums[shards + 1], work.dataset.size()};
}

}  // namespace

Evaluation JobCore::evaluate(const Dataset& dataset,
                             const std::function<Score(const Batch&)>& score,
                             const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  if (models_.all.empty()) throw BadInput("the job has no Step: there is no model to evaluate");
  settle();
  std::optional<data::StreamReader> streams;
  if (const data::StreamSet* const set = data::streams_in(dataset)) {
    if (set->is_endless())
      throw BadInput("streams without an end cannot be evaluated: say how many samples they have");
    streams.emplace(*set, setup_.options.shards, setup_.options.seed);
  }
  const EvaluationScope evaluating(modules);
  std::vector<torch::Tensor> buffers;
  for (const ModelView& model : models_.all) {
    for (const NamedTensor& buffer : model.buffers()) buffers.push_back(buffer.tensor);
  }
  const UnchangedScope unchanged(std::move(buffers));
  // As many samples as a shard has: they fit into memory with a backward pass, so they do without.
  return repeated([&] {
    control::Faults::here().strike("evaluation", position());
    return evaluate_all(generation_, {.dataset = streams ? *streams : dataset,
                                      .score = score,
                                      .most = setup_.options.global_batch / setup_.options.shards,
                                      .seed = setup_.options.seed,
                                      .device = models_.all.front().device()});
  });
}

}  // namespace lockstep::steps
