// The engine of a step: one model and the optimizer that trains it.
//
//   shard    a backward pass into the bank that plan/ names
//   finish   every gradient of the step is where the update reads it
//   update   the optimizer's
//
// Where every worker reads all gradients, nothing is reduced before the update, which does it on the way (in one pass).
// Elsewhere, and where somebody wants to see averages, the last backward reduces.
#pragma once

#include <lockstep/data_parallel.h>
#include <lockstep/optim.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/core/parity.h"
#include "torch/device/device.h"
#include "torch/kernels/device_update.h"
#include "torch/replica/replicated.h"
#include "torch/step/checkpoint.h"
#include "torch/step/generation.h"

namespace lockstep::train {

// A model of a job, as a job sees it.
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
  std::shared_ptr<replica::Replicated> state_;
};

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

// As long as it lives the model is the job's: it reduces what its banks hold, and leaves its buffers alone. It is the
// user's again after, with no gradients.
//
// Threads:   that of the replica.
// Blocking:  the constructor, finish(), synchronize() and update(), which are collective; at most the Comm's timeout.
// Failure:   as Replica and Optimizer.
// Ownership: shares the model; borrows the optimizer and the generation.
class ModelStep {
 public:
  struct Options {
    bool watches = false;   // looks for bits that change on their own
    bool averages = false;  // param.grad has them before an update
  };
  ModelStep(optim::Optimizer& optimizer, const Generation& generation, Options options);
  ~ModelStep();
  ModelStep(const ModelStep&) = delete;
  ModelStep& operator=(const ModelStep&) = delete;

  const ModelView& model() const { return model_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  bool in_one_pass() const { return in_one_pass_; }

  // Before a shard's turn.
  void begin_shard(const plan::Accumulation::Step& planned);
  // Backward passes add up, as long as it lives; for all but the last of a model that is not updated in one pass.
  std::unique_ptr<NoSync> adds_up() const { return std::make_unique<NoSync>(model_.state_); }
  // Before the last backward of such a model: what the sum over shards is divided by.
  void set_divisor(double total);
  // In place of the last backward, for a shard without samples.
  void synchronize();

  // After the last shard.
  void finish();
  // What the reduction has added to the last backward; in one pass nothing.
  std::chrono::nanoseconds exposed() const;

  // `total` is the sum of the weights of all shards; a GPU takes `note` along. Returns how long it waited for others.
  std::chrono::nanoseconds update(double total, const kernels::Note& note);
  void set_rates(const std::vector<double>& rates);  // by group, as Optimizer::rates()

  // For the divergence check. By piece: gradients applied, then parameters with state; on a GPU after collect_watched().
  std::vector<comm::Parity> seen() const;
  void collect_watched();
  bool has_copies() const;                          // every worker updates one of its own
  void check_at_rest();                             // compares without an update
  std::string place_name(std::size_t piece) const;  // "… fc1.weight (elements 0 to 8191)"
  struct Fault {
    int worker = 0;
    std::string text;
    std::string remedy;
  };
  std::optional<Fault> fault() const;

  // Backward passes that are captured in a CUDA graph: begin_capture() before the graph's body, end_capture() at its end,
  // and replayed() after every replay, in place of what a pass does.
  using Captured = replica::Replicated::Captured;
  void begin_capture();
  Captured end_capture();
  void cancel_capture();  // when something was thrown on the way
  void replayed(const Captured& captured);

 private:
  void make_banks();
  void watch_gradients();
  std::optional<replica::Replicated::Sharded> sharded() const;

  optim::Optimizer& optimizer_;
  ModelView model_;
  const Generation& generation_;
  bool in_one_pass_;
  bool synced_buffers_;
};

}  // namespace lockstep::train
