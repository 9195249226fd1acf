#include "torch/step/job_state.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "base/environment.h"
#include "torch/step/local_model.h"

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
  add({Kind::kWeights, name, [all = std::move(parameters)] { return all; }, trained});
}

namespace {

// The state of an optimizer while it is saved and read. That of a wrapped one is bytes, and its
// length changes: it is read into memory of its own, and then loaded.
class OptimizerState {
 public:
  explicit OptimizerState(optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  bool is_packed() const { return dynamic_cast<optim::Wrapped*>(&optimizer_) != nullptr; }
  std::size_t packed_bytes() const { return optimizer_.state().back().tensor.nbytes(); }
  void expect(std::int64_t packed_bytes) {
    arriving_ = torch::empty({packed_bytes}, torch::kUInt8);
  }
  std::vector<NamedTensor> tensors() const {
    std::vector<NamedTensor> all = optimizer_.state();
    if (arriving_.defined()) all.back().tensor = arriving_;  // the packed one is the last
    return all;
  }
  void set_steps(std::int64_t steps) {
    if (!arriving_.defined()) return optimizer_.set_steps(steps);
    optimizer_.load_state(tensors(), steps);
    arriving_ = torch::Tensor();
  }

 private:
  optim::Optimizer& optimizer_;
  torch::Tensor arriving_;  // what is read; undefined: nothing
};

}  // namespace

JobState::Value JobState::rate_of(optim::Optimizer& optimizer) {
  return {"learning_rate", [&optimizer] { return fmt::format("{}", optimizer.lr()); },
          [&optimizer](double rate) {
            // set_lr() also multiplies the rates of groups again, and a bit of them may change.
            if (optimizer.lr() != rate) optimizer.set_lr(rate);
          }};
}

void JobState::add_optimizer(const std::string& name, optim::Optimizer& optimizer) {
  const auto state = std::make_shared<OptimizerState>(optimizer);
  Part part{Kind::kState, name, [state] { return state->tensors(); }};
  part.values.push_back(
      {"optimizer_steps", [&optimizer] { return std::to_string(optimizer.steps()); },
       [state](double steps) { state->set_steps(static_cast<std::int64_t>(steps)); }});
  if (state->is_packed()) {
    part.values.push_back(
        {"packed_bytes", [state] { return std::to_string(state->packed_bytes()); }, [](double) {},
         [state](double bytes) { state->expect(static_cast<std::int64_t>(bytes)); }});
  }
  part.values.push_back(rate_of(optimizer));
  add(std::move(part));
}

void JobState::add_local(const std::string& name, LocalModel& model) {
  Part part{Kind::kLocal, name, [&model] { return model.state(); }};
  part.values.push_back(
      {"optimizer_steps", [&model] { return std::to_string(model.steps()); },
       [&model](double steps) { model.set_steps(static_cast<std::int64_t>(steps)); }});
  const auto outers = model.outers();
  for (std::size_t i = 0; i < outers.size(); ++i) {
    part.values.push_back({i == 0 ? "outer_steps" : fmt::format("outer_steps_{}", i),
                           [outer = outers[i]] { return std::to_string(outer->steps()); },
                           [outer = outers[i]](double steps) {
                             outer->set_steps(static_cast<std::int64_t>(steps));
                           }});
  }
  part.values.push_back(rate_of(model.inner()));
  add(std::move(part));
}

void JobState::add_scaler(const std::string& name, GradScaler& scaler) {
  Part part{Kind::kScaler, name, [] { return std::vector<NamedTensor>(); }};
  part.values.push_back({"loss_scale", [&scaler] { return fmt::format("{}", scaler.scale()); },
                         [&scaler](double scale) {
                           scaler.load_state({scale, scaler.state().growth_tracker});
                         }});
  part.values.push_back({"growth_tracker",
                         [&scaler] { return std::to_string(scaler.state().growth_tracker); },
                         [&scaler](double tracker) {
                           scaler.load_state({scaler.scale(), static_cast<std::int64_t>(tracker)});
                         }});
  add(std::move(part));
}

void JobState::add_codec(const std::string& name,
                         std::function<std::vector<NamedTensor>()> tensors) {
  add({Kind::kCodec, name, std::move(tensors)});
}

void JobState::keep(const std::string& name, const torch::Tensor& tensor) {
  const std::vector<NamedTensor> tensors = {{"program/" + name, tensor}};
  parts_.push_back({Kind::kKept, name, [tensors] { return tensors; }});
}

void JobState::add_streams(const torch::Tensor& positions) {
  const std::vector<NamedTensor> tensors = {{"data/streams", positions}};
  parts_.push_back({Kind::kKept, "streams", [tensors] { return tensors; }});
}

void JobState::add_noise_scale(const std::string& step, const torch::Tensor& sums) {
  const std::vector<NamedTensor> tensors = {{"noise_scale/" + step, sums}};
  parts_.push_back({Kind::kKept, step, [tensors] { return tensors; }});
}

// Whether it is the only part of its kind. Then names need no model's name.
bool JobState::is_only(const Part& part) const {
  return std::count_if(parts_.begin(), parts_.end(),
                       [&](const Part& other) { return other.kind == part.kind; }) == 1;
}

std::vector<NamedTensor> JobState::named(const Part& part) const {
  if (part.kind == Kind::kKept) return part.tensors();
  const std::string prefix = (part.kind == Kind::kState   ? "optimizer/"
                              : part.kind == Kind::kCodec ? "codec/"
                              : part.kind == Kind::kLocal ? "local/"
                                                          : "") +
                             std::string(is_only(part) ? "" : part.name + "/");
  std::vector<NamedTensor> tensors = part.tensors();
  for (NamedTensor& named : tensors) named.name = prefix + named.name;
  return tensors;
}

std::vector<NamedTensor> JobState::all_of(Kind kind) const {
  std::vector<NamedTensor> all;
  for (const Part& part : parts_) {
    if (part.kind != kind) continue;
    const auto tensors = named(part);
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  return all;
}

std::vector<NamedTensor> JobState::weights() const {
  return all_of(Kind::kWeights);
}

std::vector<NamedTensor> JobState::tensors() const {
  std::vector<NamedTensor> all = weights();
  for (const Kind kind : {Kind::kState, Kind::kCodec, Kind::kLocal, Kind::kKept}) {
    const auto more = all_of(kind);
    all.insert(all.end(), more.begin(), more.end());
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

std::string JobState::value_name(const Part& part, const Value& value) const {
  return is_only(part) ? value.name : value.name + "/" + part.name;
}

std::map<std::string, std::string> JobState::values() const {
  std::map<std::string, std::string> all;
  for (const Part& part : parts_) {
    for (const Value& value : part.values) all[value_name(part, value)] = value.get();
  }
  return all;
}

void JobState::expect(const std::map<std::string, double>& values) {
  for (const Part& part : parts_) {
    for (const Value& value : part.values) {
      if (value.expect) value.expect(values.at(value_name(part, value)));
    }
  }
}

void JobState::set_values(const std::map<std::string, double>& values) {
  for (const Part& part : parts_) {
    for (const Value& value : part.values) value.set(values.at(value_name(part, value)));
  }
}

std::string as_lines(const std::map<std::string, std::string>& numbers) {
  std::string lines;
  for (const auto& [name, number] : numbers) lines += fmt::format("{} {}\n", name, number);
  return lines;
}

std::map<std::string, double> numbers_in(const std::string& lines) {
  std::map<std::string, double> numbers;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    const auto space = line.rfind(' ');
    numbers[line.substr(0, space)] = base::parse_real(line.substr(space + 1)).value();
  }
  return numbers;
}

}  // namespace lockstep::steps
