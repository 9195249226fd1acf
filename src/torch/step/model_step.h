// A model of a job and the optimizer that trains it: what a step does with them.
#pragma once

#include <lockstep/data_parallel.h>
#include <lockstep/optim.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flat/device_update.h"
#include "flat/parity.h"
#include "torch/device/device.h"
#include "torch/divergence/check.h"
#include "torch/optim/impl.h"
#include "torch/replica/pass.h"
#include "torch/replica/replicated.h"
#include "torch/step/checkpoint.h"
#include "torch/step/generation.h"
#include "torch/step/gradients.h"

namespace lockstep::steps {

// A model of a job, as a job sees it: what checkpoints, loops and evaluation ask of it, without the parts of a replica.
//
// Threads:   that of the replica.
// Blocking:  keep_one_copy() and identical(), which are collective.
// Failure:   as Replica.
// Ownership: shares the replica.
class ModelView {
 public:
  explicit ModelView(const Replica& model);
  explicit ModelView(optim::Optimizer& optimizer);  // the model that it trains

  bool operator==(const ModelView&) const = default;

  std::string name() const;                            // empty: it has none
  std::shared_ptr<torch::nn::Module> module() const;   // null: it has none, or it has gone
  const std::vector<NamedTensor>& parameters() const;  // each once
  const std::vector<NamedTensor>& buffers() const;
  std::vector<NamedTensor> everything() const;  // both
  std::vector<torch::Tensor> trained() const;   // parameters that want gradients
  torch::Tensor buffer_bytes() const;  // on a GPU, all buffers; else, and without any, undefined
  Device device() const;
  Comm& comm();

  void note_update();  // all workers have written to the parameters
  void keep_one_copy();
  bool identical();

 private:
  friend class ModelStep;
  friend class StreamOfModels;
  friend bool has_others(const std::vector<ModelView>& models);
  std::shared_ptr<replica::Replicated> state_;
};

// Whether this process has replicas besides these.
bool has_others(const std::vector<ModelView>& models);

// What of an optimizer, and of how its model is reduced, decides the result; but for the learning rate, which changes.
Properties properties_of(optim::Optimizer& optimizer);

// On a GPU, as long as it lives: a stream for training, which the default one cannot be; the hooks of the models, at least
// one, follow.
class StreamOfModels {
 public:
  explicit StreamOfModels(std::vector<ModelView> models);
  ~StreamOfModels();
  StreamOfModels(const StreamOfModels&) = delete;
  StreamOfModels& operator=(const StreamOfModels&) = delete;

 private:
  std::vector<ModelView> models_;
  std::unique_ptr<device::StreamScope> stream_;
};

// As long as it lives the model is the job's: backward passes are of shards, and its buffers are left alone. It is the
// user's again after, with no gradients.
//
// Threads:   that of the replica.
// Blocking:  the constructor and update(), and what gradients() says, which are collective; at most the Comm's timeout.
// Failure:   as Replica and Optimizer.
// Ownership: shares the model; borrows the optimizer and the generation.
class ModelStep : public divergence::Subject {
 public:
  struct Options {
    bool watches = false;  // looks for bits that change on their own
    Averages averages = Averages::kAnywhere;
  };
  ModelStep(optim::Optimizer& optimizer, const Generation& generation, Options options);
  ~ModelStep() override;
  ModelStep(const ModelStep&) = delete;
  ModelStep& operator=(const ModelStep&) = delete;

  const ModelView& model() const { return model_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  StepGradients& gradients() { return *gradients_; }

  // From what gradients() has finished: all is known after prepare(), and nothing written. A GPU takes `note` along.
  void prepare(const optim::GradientSource& source);
  void apply(const flat::Note& note, optim::UpdateJournal* journal);
  std::chrono::nanoseconds waited() const { return parts_.update->waited(); }  // for others
  const optim::Trained& trained() const { return parts_.trained; }
  double clip_factor() const { return parts_.update->clip_factor(); }
  void set_rates(const std::vector<double>& rates);  // by group, as Optimizer::rates()

  // For the divergence check.
  std::vector<flat::Parity> seen() override;
  std::string item_name(std::size_t item) const override;
  bool has_copies() const override;
  void check_at_rest() override { parts_.update->check_at_rest(); }
  std::optional<Found> fault() const override;

  // Waits until a GPU has done what the check looks at.
  void collect_with_parity() { parts_.update->collect(); }

  // On a GPU: backward passes that are captured in a CUDA graph, and after every replay of it.
  std::unique_ptr<replica::CapturePass> capture();
  void replayed(const replica::ShardPass::Captured& captured);

 private:
  optim::Optimizer& optimizer_;
  optim::Optimizer::Impl& parts_;  // of the optimizer
  ModelView model_;
  int workers_;
  std::unique_ptr<StepGradients> gradients_;
};

}  // namespace lockstep::steps
