// Optimizers on the flat layout, with the numbers of torch::optim.
#pragma once

#include <lockstep/data_parallel.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::optim {

struct Inside;

// The options of each mean what torch::optim's mean, with the same defaults. All of them decide
// the result.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  // added to the gradient
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  // taken off the weights, apart from the gradient
};

// Parameters with options of their own, such as biases without weight decay.
template <typename Options>
struct Group {
  std::vector<torch::Tensor> parameters;
  Options options;
};

// What all optimizers are.
//
// Threads:   one caller at a time, over all replicas and optimizers of a world.
// Blocking:  the constructor and step() are collective, and wait for the other workers, at most the world's timeout. Every
//            worker calls step() after the same backward.
// Failure:   the constructors throw BadInput for options out of range and for parameters that are
//            not the model's; step() for a gradient that was moved out of its place, on this worker
//            or another, and for a norm that is not finite. Mismatch, on every worker, when their options, learning
//            rates, norms for clipping or numbers of steps differ. Unavailable, PeerLost, Timeout.
// Ownership: shares the model's tensors; owns its state, which lies in the model's layout, once per
//            host where workers share memory.
class Optimizer {
 public:
  struct Impl;
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter from its averaged gradient. Where workers share memory, each updates
  // a slice and writes it into everybody's parameters.
  void step();

  // Before an update all gradients are scaled down together so that the norm over all of them is
  // at most this; 0, the default, leaves them. param.grad keeps its values. The same on every
  // worker. last_norm() is that of the last step, before clipping; 0 without.
  void set_clip_norm(double most);
  double clip_norm() const;
  double last_norm() const;

  // Clears the model's gradients; see Replica::zero_grad().
  void zero_grad();

  // The learning rate of the parameters outside of all groups. Setting it keeps the ratio that each
  // group's had to it at first (1, if that was 0).
  double lr() const;
  void set_lr(double lr);
  std::vector<double> rates() const;  // the same, then that of each group

  std::int64_t steps() const;       // taken so far
  const std::string& name() const;  // "sgd", "adam", "adamw"

  // The state, for checkpoints: tensors named such as "momentum/fc1.weight", which share the
  // optimizer's memory. load_state copies values in; Mismatch, with nothing changed, when names,
  // shapes or dtypes differ.
  std::vector<NamedTensor> state() const;
  void load_state(const std::vector<NamedTensor>& state, std::int64_t steps);
  void set_steps(std::int64_t steps);  // after writing into the tensors of state()

  // For LibTorch's learning-rate schedulers: torch::optim::StepLR scheduler(optimizer, 30, 0.1). They set the rate of each
  // group; another option of a group that is changed is BadInput at the next step. Its step() is this one's.
  operator torch::optim::Optimizer&();  // NOLINT: implicit, so that a scheduler can be made from it

 protected:
  explicit Optimizer(std::shared_ptr<Impl> impl);

 private:
  friend struct Inside;
  std::shared_ptr<Impl> impl_;
};

// For torch::save(optimizer, …) and torch::load(optimizer, …): state, steps and learning rate. Mismatch, with nothing
// changed, for another optimizer's. Every worker loads.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const Optimizer& optimizer);
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           Optimizer& optimizer);

class SGD : public Optimizer {
 public:
  explicit SGD(Replica& model, const SGDOptions& options,
               const std::vector<Group<SGDOptions>>& groups = {});
};

class Adam : public Optimizer {
 public:
  explicit Adam(Replica& model, const AdamOptions& options = {},
                const std::vector<Group<AdamOptions>>& groups = {});
};

class AdamW : public Optimizer {
 public:
  explicit AdamW(Replica& model, const AdamWOptions& options = {},
                 const std::vector<Group<AdamWOptions>>& groups = {});
};

}  // namespace lockstep::optim
