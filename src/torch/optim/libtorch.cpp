// What LibTorch sees of an optimizer: for its learning-rate schedulers and for its archives. A
// scheduler writes to LibTorch's own option objects. follow_scheduler() copies the rates from there
// to the rules, before each step and whenever rates are asked for.
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/optim.h>

#include <utility>

#include "torch/optim/impl.h"

namespace lockstep::optim {

// An optimizer as LibTorch's base class: schedulers take nothing else.
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
    const Trained& trained = impl_->trained;
    for (std::size_t i = 0; i < trained.groups.count(); ++i) {
      std::vector<torch::Tensor> parameters;
      for (std::size_t entry = 0; entry < trained.groups.entries(); ++entry) {
        if (trained.groups.group_of(entry) == i) parameters.push_back(trained.parameter(entry));
      }
      groups.emplace_back(std::move(parameters), trained.groups.rule(i).as_torch());
    }
    impl_->scheduled = std::make_shared<Impl::Scheduled>(*this, std::move(groups),
                                                         trained.groups.rule(0).as_torch());
  }
  return *impl_->scheduled;
}

void Optimizer::Impl::follow_scheduler() {
  if (!scheduled) return;
  for (std::size_t i = 0; i < trained.groups.count(); ++i)
    trained.groups.rule(i).follow(scheduled->param_groups()[i].options());
}

void Optimizer::Impl::set_rate(std::size_t rule, double lr) {
  trained.groups.rule(rule).set_lr(lr);
  if (scheduled) scheduled->param_groups()[rule].options().set_lr(lr);
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const Optimizer& optimizer) {
  archive.write("name", c10::IValue(optimizer.name()));
  archive.write("steps", c10::IValue(optimizer.steps()));
  archive.write("rates", torch::tensor(optimizer.rates(), torch::kFloat64));
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
  torch::Tensor rates;
  archive.read("rates", rates);
  const std::size_t groups = inside(optimizer).trained.groups.count();
  if (rates.numel() != static_cast<std::int64_t>(groups)) {
    throw Mismatch(fmt::format("the file holds an optimizer of {} groups, and this one has {}",
                               rates.numel(), groups));
  }
  optimizer.load_state(state, read("steps").toInt());
  for (std::size_t i = 0; i < groups; ++i)
    inside(optimizer).set_rate(i, rates[static_cast<std::int64_t>(i)].item<double>());
  return archive;
}

}  // namespace lockstep::optim
