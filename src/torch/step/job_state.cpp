#include "torch/step/job_state.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>

namespace lockstep::steps {

void JobState::add(Part part) {
  for (const Part& other : parts_) {
    if (other.kind != part.kind || other.name != part.name) continue;
    throw BadInput(
        fmt::format("two models of the job are called {}: give each a name of its own "
                    "(DataParallelOptions::name), by which checkpoints tell them apart",
                    part.name.empty() ? "nothing" : part.name));
  }
  parts_.push_back(std::move(part));
}

void JobState::add_model(const std::string& name, std::vector<NamedTensor> parameters,
                         const std::vector<NamedTensor>& buffers) {
  const std::size_t trained = parameters.size();
  parameters.insert(parameters.end(), buffers.begin(), buffers.end());
  add({Part::Kind::kWeights, name, [all = std::move(parameters)] { return all; }, trained});
}

void JobState::add_optimizer(const std::string& name, optim::Optimizer& optimizer) {
  Part part{Part::Kind::kState, name, [&optimizer] { return optimizer.state(); }};
  part.values.push_back(
      {"optimizer_steps", [&optimizer] { return std::to_string(optimizer.steps()); },
       [&optimizer](double steps) { optimizer.set_steps(static_cast<std::int64_t>(steps)); }});
  part.values.push_back(
      {"learning_rate", [&optimizer] { return fmt::format("{}", optimizer.lr()); },
       [&optimizer](double rate) {
         if (optimizer.lr() != rate)
           optimizer.set_lr(rate);  // groups keep theirs, to the bit, where nothing changes
       }});
  add(std::move(part));
}

// Empty for the only part of its kind.
std::string JobState::prefix_of(const Part& part) const {
  const auto same = std::count_if(parts_.begin(), parts_.end(),
                                  [&](const Part& other) { return other.kind == part.kind; });
  return same > 1 ? part.name + "/" : "";
}

std::vector<NamedTensor> JobState::named(const Part& part) const {
  const std::string prefix =
      (part.kind == Part::Kind::kState ? "optimizer/" : "") + prefix_of(part);
  std::vector<NamedTensor> tensors = part.tensors();
  for (NamedTensor& named : tensors) named.name = prefix + named.name;
  return tensors;
}

std::vector<NamedTensor> JobState::weights() const {
  std::vector<NamedTensor> all;
  for (const Part& part : parts_) {
    if (part.kind != Part::Kind::kWeights) continue;
    const auto tensors = named(part);
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  return all;
}

std::vector<NamedTensor> JobState::tensors() const {
  std::vector<NamedTensor> all = weights();
  for (const Part& part : parts_) {
    if (part.kind != Part::Kind::kState) continue;
    const auto tensors = named(part);
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  return all;
}

std::vector<NamedTensor> JobState::finite() const {
  std::vector<NamedTensor> all;
  for (const Part& part : parts_) {
    if (part.finite == 0) continue;
    const auto tensors = named(part);
    all.insert(all.end(), tensors.begin(),
               tensors.begin() + static_cast<std::ptrdiff_t>(part.finite));
  }
  return all;
}

std::string JobState::value_name(const Value& value, const std::string& prefix) {
  return prefix.empty() ? value.name : value.name + "/" + prefix.substr(0, prefix.size() - 1);
}

std::map<std::string, std::string> JobState::values() const {
  std::map<std::string, std::string> all;
  for (const Part& part : parts_) {
    for (const Value& value : part.values) all[value_name(value, prefix_of(part))] = value.get();
  }
  return all;
}

void JobState::set_values(const std::map<std::string, double>& values) {
  for (const Part& part : parts_) {
    for (const Value& value : part.values) value.set(values.at(value_name(value, prefix_of(part))));
  }
}

}  // namespace lockstep::steps
