// How a replica stays attached to a model that the program owns.
//
//   hook      belongs to an accumulator. It says that a gradient was added up. torch::load(), and
//             module->to() with another type or device, drop the accumulator and the hook with it
//   pre-hook  belongs to a parameter. It runs before the gradient is added up. It stays if the
//             accumulator is dropped, so it notices what the hook cannot. On an idle worker it puts
//             zeros in place of the gradient
//   moved     a parameter whose values are no longer in the flat memory. Its pre-hook notices this.
//             At the end of the pass the values are copied back, and the new accumulator gets a
//             hook
//
// A parameter belongs to the replica that was made last. The replica before it is retired, and its
// hooks are removed.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::replica {

class FlatGradients;
struct Parts;

// What is told of backward passes, on the threads that Attachment names. A Pass or a CapturePass.
class PassListener {
 public:
  virtual ~PassListener() = default;

  // The gradient of a moved parameter is about to be added up; if the worker is idle, that of any.
  virtual void before(std::size_t entry) = 0;
  // A gradient has been added up; `incoming` is what was added.
  virtual void ready(std::size_t entry, const torch::Tensor& incoming) = 0;
  // The end of a pass, if Attachment::call_at_end() has asked for it.
  virtual void end() = 0;

  // Whether the pass does not count (control/turns.h): gradients are added up as zeros.
  virtual bool idle() const { return false; }

  // The weight of the next pass; nullopt: it has none.
  virtual void expect(std::optional<double> weight) = 0;
};

// The hooks of one replica. Part of a Replicated, and kept alive by its shared pointer.
//
// Threads:   one caller at a time. On the CPU hooks run on the thread that calls backward(). On a
//            GPU they run on a thread of LibTorch's, while the caller waits.
// Blocking:  never.
// Failure:   BadInput, naming the parameter or the model.
// Ownership: shares the tensors; borrows the parts and the listener.
class Attachment {
 public:
  Attachment(Parts& parts, std::string name);
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  // Installs hooks and pre-hooks. `self` points to this object, and keeps its owner alive.
  void attach(const std::shared_ptr<Attachment>& self);

  // Tells this listener from now on.
  void tell(PassListener& listener) { listener_ = &listener; }

  // Installs hooks for the current stream. A backward pass accumulates on the stream that was
  // current when the accumulator was made.
  void install_hooks();

  // `parameters` lists the parameters that the module has when it is called. check_module()
  // compares them with those that it has now.
  using Listing = std::function<std::vector<torch::Tensor>()>;
  void remember_module(Listing parameters, std::weak_ptr<torch::nn::Module> module);
  std::shared_ptr<torch::nn::Module> module() const { return module_.lock(); }

  // To be called inside a pass: LibTorch calls the listener's end() when the pass has ended.
  void call_at_end();

  // At the end of a pass: copies moved parameters back. Returns their entries: no hook may have
  // told of their gradients.
  std::vector<std::size_t> take_back_moved();

  // Outside of a pass: copies every moved parameter back, and hooks new accumulators.
  void check(const FlatGradients& gradients);

  // BadInput if the model was wrapped again.
  void require_current() const;
  // BadInput if the module has other parameters than at first.
  void check_module() const;

  const std::string& name() const { return name_; }

 private:
  class Hook;
  friend class Expectation;

  void install_pre_hooks();
  torch::Tensor before(std::size_t entry, const torch::Tensor& gradient);
  void retire_earlier();
  void retire();
  void rehook();

  Parts& parts_;
  std::string name_;
  std::weak_ptr<Attachment> self_;
  PassListener* listener_ = nullptr;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;  // by entry
  std::vector<unsigned> pre_hooks_;  // LibTorch's numbers for them, by entry
  std::vector<std::size_t> moved_;   // entries that were found moved in this pass
  bool retired_ = false;             // the model was wrapped again
  // A model that is a list of tensors has none of these.
  std::weak_ptr<torch::nn::Module> module_;
  Listing listing_;
  std::vector<torch::Tensor> at_first_;  // what listing_ returned at first
};

// Whether this process has other replicas than these. A backward pass may reach those, too.
bool others_are_hooked(const std::vector<const Attachment*>& known);

// While it lives, the backward pass of this loss has a weight, for every replica that the loss
// depends on. It finds them in the graph of the loss. A thread-local variable would not do, because
// on a GPU backward runs on another thread.
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
