// Everything that a job's steps change, by name. Checkpoints and hashes go over it; whatever adds state to a job
// registers it here.
//
//   weights   parameters and buffers of a model, named as its module names them
//   state     memories of an optimizer, as optimizer/…
//   values    numbers beside them: steps of an optimizer, its learning rate
//
// With several models or optimizers in one job each name begins with that of its model: generator/fc1.weight,
// optimizer/generator/momentum/fc1.weight, learning_rate/generator.
#pragma once

#include <lockstep/data_parallel.h>
#include <lockstep/optim.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep::steps {

// Threads:   one caller at a time.
// Blocking:  never; on a GPU, where state must be read.
// Failure:   BadInput for two parts of one name.
// Ownership: shares the models; borrows the optimizers.
class JobState {
 public:
  struct Value {
    std::string name;
    std::function<std::string()> get;
    std::function<void(double)> set;  // not negative
  };
  struct Part {
    enum class Kind { kWeights, kState };
    Kind kind = Kind::kWeights;
    std::string name;  // the model's
    std::function<std::vector<NamedTensor>()> tensors;
    std::size_t finite = 0;  // how many of the first tensors must be finite to go on from them
    std::vector<Value> values = {};
  };
  void add(Part part);

  void add_model(const std::string& name, std::vector<NamedTensor> parameters,
                 const std::vector<NamedTensor>& buffers);
  void add_optimizer(const std::string& name, optim::Optimizer& optimizer);

  // Memory of the job, not copies.
  std::vector<NamedTensor> weights() const;
  std::vector<NamedTensor> tensors() const;  // weights, then state
  std::vector<NamedTensor> finite() const;   // see Part

  std::map<std::string, std::string> values() const;
  void set_values(const std::map<std::string, double>& values);

 private:
  std::string prefix_of(const Part& part) const;
  std::vector<NamedTensor> named(const Part& part) const;
  static std::string value_name(const Value& value, const std::string& prefix);

  std::vector<Part> parts_;
};

}  // namespace lockstep::steps
