// One optimizer of each kind, with options that need all of its states, and LibTorch's of the same.
#pragma once

#include <lockstep/optim.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::testing {

inline std::vector<std::string> optimizer_names() {
  return {"sgd", "adamw", "adam", "rmsprop", "adagrad"};
}

// With those that LibTorch does not have.
inline std::vector<std::string> all_optimizer_names() {
  auto names = optimizer_names();
  names.insert(names.end(), {"lars", "lamb"});
  return names;
}

inline std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name, Replica& model) {
  using namespace optim;  // NOLINT: names of options in this function
  if (name == "adamw")
    return std::make_unique<AdamW>(model, AdamWOptions{.lr = 1e-3, .weight_decay = 0.3});
  if (name == "adam") {
    return std::make_unique<Adam>(
        model, AdamOptions{.lr = 1e-3, .beta2 = 0.9, .weight_decay = 0.1, .amsgrad = true});
  }
  if (name == "rmsprop") {
    return std::make_unique<RMSprop>(
        model,
        RMSpropOptions{
            .lr = 1e-3, .alpha = 0.9, .weight_decay = 0.1, .momentum = 0.9, .centered = true});
  }
  if (name == "adagrad") {
    return std::make_unique<Adagrad>(
        model,
        AdagradOptions{
            .lr = 1e-2, .lr_decay = 1e-2, .weight_decay = 0.1, .initial_accumulator_value = 0.1});
  }
  if (name == "lars") {
    return std::make_unique<LARS>(
        model, LARSOptions{.lr = 0.02, .weight_decay = 5e-4, .trust_coefficient = 0.1});
  }
  if (name == "lamb")
    return std::make_unique<LAMB>(model, LAMBOptions{.lr = 0.02, .weight_decay = 0.1});
  return std::make_unique<SGD>(model,
                               SGDOptions{.lr = 0.02, .momentum = 0.9, .weight_decay = 5e-4});
}

// Where LibTorch has none: its SGD, with the same learning rate.
inline std::unique_ptr<torch::optim::Optimizer> make_stock_optimizer(
    const std::string& name, const std::vector<torch::Tensor>& parameters) {
  using namespace torch::optim;  // NOLINT: as above
  if (name == "adamw")
    return std::make_unique<AdamW>(parameters, AdamWOptions(1e-3).weight_decay(0.3));
  if (name == "adam") {
    return std::make_unique<Adam>(
        parameters, AdamOptions(1e-3).betas({0.9, 0.9}).weight_decay(0.1).amsgrad(true));
  }
  if (name == "rmsprop") {
    return std::make_unique<RMSprop>(
        parameters, RMSpropOptions(1e-3).alpha(0.9).weight_decay(0.1).momentum(0.9).centered(true));
  }
  if (name == "adagrad") {
    return std::make_unique<Adagrad>(
        parameters,
        AdagradOptions(1e-2).lr_decay(1e-2).weight_decay(0.1).initial_accumulator_value(0.1));
  }
  return std::make_unique<SGD>(parameters, SGDOptions(0.02).momentum(0.9).weight_decay(5e-4));
}

}  // namespace lockstep::testing
