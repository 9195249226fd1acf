// An optimizer that the program has made, of LibTorch's classes or of its own, behind optim::Wrapped.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>

namespace lockstep::optim {

// The name of its state, among the tensors of Optimizer::state().
inline constexpr const char* kPacked = "packed";

// Owned by the Update that calls it and by the Rules that ask for its learning rates, together.
//
// Threads:   one caller at a time.
// Blocking:  never, unless the program's step() does.
// Failure:   BadInput from the constructor, for an optimizer that cannot be wrapped; from step(),
//            with what the program's step() threw; from pack(), if there is state that the program's
//            save() leaves out. Mismatch from unpack().
// Ownership: shares the optimizer.
class WrappedOptimizer {
 public:
  explicit WrappedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);

  const std::string& name() const { return name_; }  // of its class
  torch::optim::Optimizer& get() { return *optimizer_; }
  torch::optim::OptimizerOptions& options(std::size_t group) {
    return optimizer_->param_groups()[group].options();
  }

  void step(std::int64_t number);

  // What its save() writes, as bytes. unpack() calls its load(), and leaves the options as they are:
  // these are the program's.
  torch::Tensor pack() const;
  void unpack(const torch::Tensor& bytes);

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::string name_;
  bool saves_ = true;  // its save() writes something
};

}  // namespace lockstep::optim
