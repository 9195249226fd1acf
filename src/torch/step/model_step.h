// What a job sees of a model (ModelView), and of a model with its optimizer (ModelStep). The rest of this folder reaches the
// inside of a replica or an optimizer only through them and StepGradients.
#pragma once

#include <lockstep/data_parallel.h>
#include <lockstep/optim.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flat/device_update.h"
#include "flat/parity.h"
#include "torch/device/device.h"
#include "torch/divergence/check.h"
#include "torch/optim/impl.h"
#include "torch/replica/measured_pass.h"
#include "torch/replica/pass.h"
#include "torch/replica/replicated.h"
#include "torch/step/checkpoint.h"
#include "torch/step/generation.h"
#include "torch/step/gradients.h"

namespace lockstep::steps {

// A model of a job: what checkpoints, loops and evaluation ask of it, without the parts of a replica.
//
// Threads:   as the replica.
// Blocking:  share_values() and identical(), which are collective.
// Failure:   as Replica.
// Ownership: shares the replica.
class ModelView {
 public:
  explicit ModelView(const Replica& model) : state_(replica::Inside::of(model)) {}
  // The model that it trains.
  explicit ModelView(optim::Optimizer& optimizer)
      : state_(optim::inside(optimizer).trained.model) {}

  bool operator==(const ModelView&) const = default;

  // Empty: it has none.
  std::string name() const { return state_->parts().options.name; }
  // Null: it has none, or the program has dropped it.
  std::shared_ptr<torch::nn::Module> module() const { return state_->attachment().module(); }
  // Each once.
  const std::vector<NamedTensor>& parameters() const { return state_->model().parameters; }
  const std::vector<NamedTensor>& buffers() const { return state_->model().buffers; }
  std::vector<NamedTensor> everything() const { return state_->model().everything(); }  // both
  std::vector<torch::Tensor> trained() const;  // parameters that want gradients
  // All buffers, on a GPU; undefined on a CPU, or if there are none.
  torch::Tensor buffer_bytes() const;
  Device device() const { return state_->device(); }
  Comm& comm() { return state_->comm(); }

  // What all workers have written to parameters they share from now on. Collective.
  void share_values() { state_->share_values(); }
  // Before the first step of a job: the same, and takes the memory of a codec. Collective.
  void prepare(int shards);
  // Null: there is none.
  const Codec* codec() const;
  // Whether it has error feedback, which only the worker of a shard has. complete_codec() brings it to all, and is
  // collective. codec_state(): as Encoding::state().
  bool keeps_codec_state() const;
  void complete_codec();
  std::function<std::vector<NamedTensor>()> codec_state() const;
  // The same on each host; hosts may have written different values.
  void share_on_host() { state_->share_on_host(); }
  bool identical() { return state_->identical(); }

 private:
  friend class ModelStep;
  friend class StreamOfModels;
  friend Properties properties_of(const optim::Optimizer& optimizer, const ModelView& model);
  friend bool has_others(const std::vector<ModelView>& models);
  std::shared_ptr<replica::Replicated> state_;
};

// Whether it is on a CPU, where other workers may share its memory. (device_choice.cpp)
bool on_host(const ModelView& model);

// Whether this process has other replicas than these.
bool has_others(const std::vector<ModelView>& models);

// What decides the result: the optimizer's rules, and the algorithm that reduces its model. Not the learning rate, which
// a job may change.
Properties properties_of(const optim::Optimizer& optimizer, const ModelView& model);

// On a GPU, as long as it lives, LibTorch queues on a stream for training, because the default stream cannot be captured.
// Hooks are installed again before and after, since backward accumulates on the stream that was current when a hook was
// made. On a CPU it does nothing. The Loop owns it.
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

// A model and its optimizer in an open loop. As long as it lives, backward passes are those of shards, and no pass
// broadcasts buffers. Then the model is the program's again, without gradients.
//
// Threads:   as the replica.
// Blocking:  the constructor, prepare() and apply(), which are collective, at most the Comm's timeout; gradients() as its
//            class says.
// Failure:   as Replica and Optimizer.
// Ownership: the Loop owns it. It shares the model; it borrows the optimizer and the generation.
class ModelStep : public divergence::Subject {
 public:
  struct Options {
    bool with_parity = false;  // looks for bits that changed though nobody wrote
    Averages averages = Averages::kAnywhere;
  };
  ModelStep(optim::Optimizer& optimizer, const Generation& generation, Options options);
  ~ModelStep() override;
  ModelStep(const ModelStep&) = delete;
  ModelStep& operator=(const ModelStep&) = delete;

  const ModelView& model() const { return model_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  StepGradients& gradients() { return *gradients_; }

  // The update: prepare(), then apply() or skip(). After prepare() all numbers are known and nothing is written. On a GPU
  // the update also copies `note`.
  void prepare(const optim::GradientSource& source);
  void apply(const flat::Note& note, optim::UpdateJournal* journal);
  void skip(const flat::Note& note, optim::UpdateJournal* journal);
  // As Update.
  void finish(const optim::UpdateNumbers& numbers, optim::UpdateJournal& journal) {
    parts_.update->finish(numbers, journal);
  }
  void complete(bool skipped) { parts_.update->complete(skipped); }
  void take_over(const optim::GradientSource& source) { parts_.update->take_over(source); }
  // Whether each worker has weights and state of its own: a wrapped optimizer's.
  bool has_own_weights() const { return parts_.update->packs(); }
  bool overflowed() const { return parts_.update->overflowed(); }
  // For other workers, in the last update.
  std::chrono::nanoseconds waited() const { return parts_.update->waited(); }
  const optim::Trained& trained() const { return parts_.trained; }
  double clip_factor() const { return parts_.update->clip_factor(); }
  std::span<const double> trusts() const { return parts_.update->trusts(); }
  double measured_norm() const { return parts_.update->measured_norm(); }
  void set_rates(const std::vector<double>& rates);  // by group, as Optimizer::rates()

  // Whether the next backward pass is that of a shard; any other is BadInput.
  void await_pass(bool awaited) { model_.state_->shards().await_pass(awaited); }

  // As long as it lives, it measures the gradients of shards.
  std::unique_ptr<replica::MeasuredPass> measure();

  // For the divergence check.
  std::vector<flat::Parity> seen() override;
  std::string item_name(std::size_t item) const override;
  std::vector<int> copies() const override;
  void check_at_rest() override { parts_.update->check_at_rest(); }
  std::optional<Found> fault() const override;

  // Waits until a GPU has computed the parities that the check compares.
  void collect_with_parity() { parts_.update->collect(); }

  // On a GPU: listens to a backward pass that is captured as a CUDA graph; call replayed() after every replay of it.
  std::unique_ptr<replica::CapturePass> capture();
  void replayed(const replica::ShardPass::Captured& captured);

 private:
  optim::Optimizer& optimizer_;
  optim::Optimizer::Impl& parts_;  // of the optimizer
  ModelView model_;
  std::unique_ptr<StepGradients> gradients_;
};

}  // namespace lockstep::steps
