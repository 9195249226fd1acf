// What LibTorch's own parts see of an optimizer: its learning-rate schedulers, its archives.
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <utility>

#include "torch/optim/impl.h"

namespace lockstep::optim {
namespace {

// A group's options, of which schedulers know the learning rate.
class RateOptions : public torch::optim::OptimizerOptions {
 public:
  explicit RateOptions(Rule& rule) : rule_(rule) {}
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<RateOptions>(rule_);
  }
  double get_lr() const override { return rule_.lr(); }
  void set_lr(const double lr) override { rule_.set_lr(lr); }

 private:
  Rule& rule_;
};

}  // namespace

// The groups of an optimizer as LibTorch's base class has them.
class Optimizer::Impl::Scheduled : public torch::optim::Optimizer {
 public:
  Scheduled(optim::Optimizer& optimizer, std::vector<torch::optim::OptimizerParamGroup> groups,
            std::unique_ptr<torch::optim::OptimizerOptions> defaults)
      : torch::optim::Optimizer(std::move(groups), std::move(defaults)), optimizer_(optimizer) {}

  torch::Tensor step(LossClosure closure) override {
    if (closure != nullptr)
      throw BadInput("step() of this optimizer takes no closure: call backward() before it");
    optimizer_.step();
    return {};
  }

 private:
  optim::Optimizer& optimizer_;
};

Optimizer::operator torch::optim::Optimizer&() {
  if (!impl_->scheduled) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (std::size_t i = 0; i < impl_->rules.size(); ++i) {
      std::vector<torch::Tensor> parameters;
      for (std::size_t entry = 0; entry < impl_->rule_of.size(); ++entry) {
        if (impl_->rule_of[entry] == i) parameters.push_back(impl_->parameter_of(entry));
      }
      groups.emplace_back(std::move(parameters), std::make_unique<RateOptions>(*impl_->rules[i]));
    }
    impl_->scheduled = std::make_shared<Impl::Scheduled>(
        *this, std::move(groups), std::make_unique<RateOptions>(*impl_->rules.front()));
  }
  return *impl_->scheduled;
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const Optimizer& optimizer) {
  archive.write("name", c10::IValue(optimizer.name()));
  archive.write("steps", c10::IValue(optimizer.steps()));
  archive.write("lr", c10::IValue(optimizer.lr()));
  const auto state = optimizer.state();
  archive.write("tensors", c10::IValue(static_cast<std::int64_t>(state.size())));
  for (std::size_t i = 0; i < state.size(); ++i) {
    archive.write(fmt::format("name{}", i), c10::IValue(state[i].name));
    archive.write(fmt::format("tensor{}", i), state[i].tensor);
  }
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           Optimizer& optimizer) {
  const auto read = [&](const std::string& key) {
    c10::IValue value;
    if (!archive.try_read(key, value))
      throw BadInput("the file holds no optimizer of Lockstep: it was written by another program");
    return value;
  };
  const std::string name = read("name").toStringRef();
  if (name != optimizer.name()) {
    throw Mismatch(fmt::format("the file holds the state of {}, and the optimizer is {}", name,
                               optimizer.name()));
  }
  std::vector<NamedTensor> state;
  for (std::int64_t i = 0; i < read("tensors").toInt(); ++i) {
    state.push_back({read(fmt::format("name{}", i)).toStringRef(), {}});
    archive.read(fmt::format("tensor{}", i), state.back().tensor);
  }
  const double lr = read("lr").toDouble();
  optimizer.load_state(state, read("steps").toInt());
  optimizer.set_lr(lr);
  return archive;
}

}  // namespace lockstep::optim
