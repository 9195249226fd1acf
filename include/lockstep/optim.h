// Optimizers on the flat layout. They compute the same numbers as torch::optim. LARS and LAMB, which
// torch::optim does not have, are for large batches.
#pragma once

#include <lockstep/data_parallel.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::optim {

struct Inside;

// Options have the meaning and the defaults that they have in torch::optim. All of them decide the
// result.
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
  bool amsgrad = false;     // divides by the root of the largest square so far
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  // subtracted from the weights, not added to the gradient
  bool amsgrad = false;
};

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;  // divides by the root of the variance, not of the mean square
};

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;  // a group's own counts; torch::optim ignores it
  double eps = 1e-10;
};

// LARS: You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks" (2017), with the
// momentum of torch::optim::SGD, as in apex and timm. For each parameter w with gradient g:
//   trust = trust_coefficient · ‖w‖ / (‖g‖ + weight_decay · ‖w‖ + eps); 1 if one of the norms is 0
//   d     = trust · (g + weight_decay · w), then as SGD
struct LARSOptions {
  double lr = 1;
  double momentum = 0.9;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  double trust_coefficient = 1e-3;
  double eps = 1e-8;
  bool adapt_vectors = false;  // false: parameters of one dimension, such as biases and weights of
                               // batch norms, have a trust of 1
};

// LAMB: You et al., "Large Batch Optimization for Deep Learning" (2020), with bias correction, as in
// NVIDIA's and timm's. For each parameter w, with m and v as in Adam:
//   u     = (m / (1 − beta1^t)) / (√v / √(1 − beta2^t) + eps) + weight_decay · w
//   trust = ‖w‖ / ‖u‖; 1 if one of the norms is 0
//   w     = w − lr · trust · u
// NVIDIA's also limits the norm of all gradients to 1: set_clip_norm(1).
struct LAMBOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 1e-2;
  bool adapt_vectors = false;  // as above
};

// How long a gradient is: the root of the sum of squares, or the largest magnitude.
enum class Norm : std::uint8_t { kEuclidean, kLargest };

struct NamedNorm {
  std::string name;  // of the parameter
  double norm = 0;
};

// Parameters with their own options, such as biases without weight decay.
template <typename Options>
struct Group {
  std::vector<torch::Tensor> parameters;
  Options options;
};

// The interface of all optimizers.
//
// Threads:   one caller at a time, for all replicas and optimizers of a world together.
// Blocking:  the constructor and step() are collective. They wait for the other workers, at most
//            the world's timeout. Every worker calls step() after the same backward.
// Failure:   the constructors throw BadInput for options out of range, for parameters that the
//            model does not have. step() throws BadInput for a gradient that has another shape than
//            its parameter, is part of a graph, or is undefined where it must not be, on this worker
//            or another, and for a norm that is not finite. Every worker gets Mismatch if their
//            options, learning rates, norms for clipping or numbers of steps differ. Unavailable,
//            PeerLost, Timeout.
// Ownership: shares the model's tensors. Owns its state. The state has the model's layout, and
//            exists once per host if workers share memory.
class Optimizer {
 public:
  struct Impl;
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter from its averaged gradient. If workers share memory, the parameters
  // exist once per host, and each worker updates its slice for all. What a program has written to
  // parameters since the last step counts; Mismatch if workers have written different values.
  void step();

  // Limits the norm over all gradients to `most`: an update scales all gradients by one factor if
  // their norm is larger. 0, the default, sets no limit. param.grad keeps its values. This and all
  // that follows must be the same on every worker.
  void set_clip_norm(double most, Norm norm = Norm::kEuclidean);
  double clip_norm() const;
  // Limits each element of a gradient to −most … most, in place of a norm.
  void set_clip_value(double most);
  double clip_value() const;

  // Norms of the last step's gradients, before their norm was limited. last_norm() is that over all
  // of them: 0 if no update needed it, the largest magnitude with Norm::kLargest. last_norms() are
  // Euclidean norms by parameter; empty before keep_norms(). After a step that a scaler skipped: 0,
  // and empty. On CPUs they cost no pass over memory of their own. On a GPU both wait for it.
  double last_norm() const;
  void keep_norms();
  std::vector<NamedNorm> last_norms() const;

  // Keeps an exponential moving average of the weights: after each update, average = decay ·
  // average + (1 − decay) · weights, in the same pass. It begins with the weights as they are now.
  // `decay` is above 0 and below 1; a later call may change it. Collective. The average is state,
  // so checkpoints have it as "ema/fc1.weight". ema() are the averages by names of parameters; they
  // share the optimizer's memory. A parameter that a step leaves alone keeps its average, too. Of
  // parameters of a half type it is the average of their float32 masters.
  void set_ema(double decay);
  double ema_decay() const;  // 0: none is kept
  std::vector<NamedTensor> ema() const;

  // Clears the model's gradients; see Replica::zero_grad().
  void zero_grad();

  // The learning rate of the parameters that are in no group. set_lr() also changes the rates of
  // the groups: each keeps the ratio that it had to this rate at first (1 if this rate was 0).
  double lr() const;
  void set_lr(double lr);
  std::vector<double> rates() const;  // lr(), then the rate of each group

  std::int64_t steps() const;       // taken so far
  const std::string& name() const;  // "sgd", "adam", "adamw", "rmsprop", "adagrad", …

  // The state, for checkpoints. The tensors have names such as "momentum/fc1.weight" and share the
  // optimizer's memory; Wrapped has a copy, "packed". load_state() copies values in. It throws
  // Mismatch, and changes nothing, if names, shapes or dtypes differ.
  std::vector<NamedTensor> state() const;
  void load_state(const std::vector<NamedTensor>& state, std::int64_t steps);
  void set_steps(std::int64_t steps);  // after writing into the tensors of state()

  // For LibTorch's learning-rate schedulers: torch::optim::StepLR scheduler(optimizer, 30, 0.1).
  // They set the rate of each group. If another option of a group was changed, the next step throws
  // BadInput. The step() of the converted optimizer is this optimizer's step().
  operator torch::optim::Optimizer&();  // NOLINT: implicit, so that a scheduler can be made from it

 protected:
  explicit Optimizer(std::shared_ptr<Impl> impl);

 private:
  friend struct Inside;
  std::shared_ptr<Impl> impl_;
};

// For torch::save(optimizer, …) and torch::load(optimizer, …): state, steps and learning rate.
// Loading the archive of another optimizer throws Mismatch and changes nothing. Every worker loads.
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

class RMSprop : public Optimizer {
 public:
  explicit RMSprop(Replica& model, const RMSpropOptions& options = {},
                   const std::vector<Group<RMSpropOptions>>& groups = {});
};

class Adagrad : public Optimizer {
 public:
  explicit Adagrad(Replica& model, const AdagradOptions& options = {},
                   const std::vector<Group<AdagradOptions>>& groups = {});
};

class LARS : public Optimizer {
 public:
  explicit LARS(Replica& model, const LARSOptions& options = {},
                const std::vector<Group<LARSOptions>>& groups = {});
};

class LAMB : public Optimizer {
 public:
  explicit LAMB(Replica& model, const LAMBOptions& options = {},
                const std::vector<Group<LAMBOptions>>& groups = {});
};

// An optimizer of LibTorch's, or of the program's own, where Lockstep's are wanted: in Steps and the
// Trainer. Each worker has weights and state of its own, and calls its step() when param.grad has
// the averages, which clipping changes. For float32 and float64; not for LBFGS. On a GPU the host
// waits for norms, and the divergence check does not see what such an optimizer writes.
class Wrapped : public Optimizer {
 public:
  explicit Wrapped(Replica& model, std::shared_ptr<torch::optim::Optimizer> optimizer);
};

}  // namespace lockstep::optim
