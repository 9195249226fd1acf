// How a replica stays attached to a model that the program owns.
//
//   hook      of an accumulator: says that a gradient was added up. LibTorch drops the accumulator, and the hook with it,
//             in torch::load() and in module->to() of another type or device
//   watcher   of a parameter: runs before its gradient is added up, and stays whatever becomes of the accumulator
//   moved     a parameter whose values are not in the flat memory any more. Its watcher notices; at the end of the pass
//             the values are taken back, and the accumulator that there is then gets a hook
//
// A parameter belongs to the replica that was made last: the one before is retired, its hooks gone.
#pragma once

#include <lockstep/data_parallel.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch/replica/flat_gradients.h"

namespace lockstep::replica {

struct Parts;

// Who is told of backward passes.
class PassListener {
 public:
  virtual ~PassListener() = default;

  // The gradient of a parameter that was given other memory is about to be added up.
  virtual void before(std::size_t entry) = 0;
  // A gradient has been added up; `incoming` is what was added.
  virtual void ready(std::size_t entry, const torch::Tensor& incoming) = 0;
  // The end of a pass, if Attachment::call_at_end() has asked for it.
  virtual void end() = 0;

  // What the pass to come weighs; nothing: it has no weight.
  virtual void expect(std::optional<double> weight) = 0;
};

// Threads:   one caller at a time; hooks run on the thread that calls backward(), or, on a GPU, on one of LibTorch's
//            while that waits.
// Blocking:  never.
// Failure:   BadInput, naming the parameter or the model.
// Ownership: shares the tensors; borrows the parts and the listener.
class Attachment {
 public:
  Attachment(Parts& parts, std::string name);
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  // Hooks. `self` is this, and keeps whatever it is a part of.
  void attach(const std::shared_ptr<Attachment>& self);

  // Whom to tell from here on.
  void tell(PassListener& listener) { listener_ = &listener; }

  // Hooks again, for the current stream: a backward pass accumulates on the one that was current when its hook was made.
  void install_hooks();

  // The module of the model, and the parameters that it has now: compared with those of before at every synchronised pass.
  using Listing = std::function<std::vector<torch::Tensor>()>;
  void watch_module(Listing parameters, std::weak_ptr<torch::nn::Module> module);
  std::shared_ptr<torch::nn::Module> module() const { return module_.lock(); }

  // Inside a pass: the listener's end() is called when it has ended.
  void call_at_end();

  // At the end of a pass: parameters that were moved are back. Returns their entries: gradients of which no hook told.
  std::vector<std::size_t> take_back_moved();

  // Outside of a pass: the same for all of them.
  void check(const FlatGradients& gradients);

  // That the model was not wrapped again; that its parameters are those of before, and only Lockstep wrote to them where
  // workers share one copy.
  void require_current() const;
  void check_module() const;

  const std::string& name() const { return name_; }

 private:
  class Hook;
  friend std::vector<std::shared_ptr<Attachment>> replicas_of(const torch::Tensor& loss);
  friend class Expectation;

  void watch_parameters();
  void retire_earlier();
  void retire();
  void rehook();

  std::vector<NamedTensor> trained_;  // by entry
  Parts& parts_;
  std::string name_;
  std::weak_ptr<Attachment> self_;
  PassListener* listener_ = nullptr;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;  // by entry
  std::vector<unsigned> watchers_;  // hooks that LibTorch keeps with a parameter, by entry
  std::vector<std::size_t> moved_;  // entries of the pass whose parameter was given other memory
  bool retired_ = false;            // the model was wrapped again
  std::weak_ptr<torch::nn::Module> module_;  // none for a model that is a list of tensors
  Listing listing_;                          // nor this
  std::vector<torch::Tensor> at_first_;      // its parameters then
};

// Whether this process has replicas besides these, to which a backward pass might come.
bool others_are_hooked(const std::vector<const Attachment*>& known);

// As long as it lives, the backward pass of this loss has a weight, for every replica that the loss depends on. They are
// found in the graph of the loss: a variable of the thread would not do, since a GPU's backward runs on another.
class Expectation {
 public:
  Expectation(const torch::Tensor& loss, double weight);
  ~Expectation();
  Expectation(const Expectation&) = delete;
  Expectation& operator=(const Expectation&) = delete;

 private:
  std::vector<std::shared_ptr<Attachment>> replicas_;
};

}  // namespace lockstep::replica
