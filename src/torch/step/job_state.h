// Everything that a job's steps change, by name. Checkpoints and hash logs are made from it. Code that adds state to a
// job adds it here, or a checkpoint would lack it.
//
//   weights   parameters and buffers of a model, named as its module names them
//   state     memories of an optimizer, as optimizer/…
//   codec     error feedback of a model's codec, as codec/shard3/…
//   local     of local steps: state of the outer SGD and of each shard's optimizer, as local/outer/… and local/shard3/…
//   values    numbers beside them: steps of an optimizer, its learning rate; scale and growth tracker of a scaler
//   kept      tensors of the program's own, as program/…; positions of streams, as data/streams; sums of the noise
//             scale, as noise_scale/STEP
//
// If a job has several models or optimizers, names have that of the model in them: generator/fc1.weight,
// optimizer/generator/momentum/fc1.weight, learning_rate/generator.
#pragma once

#include <lockstep/data_parallel.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/optim.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep::steps {

class LocalModel;

// Threads:   one caller at a time.
// Blocking:  never on a CPU; on a GPU if state must be read.
// Failure:   BadInput for two models with one name.
// Ownership: shares the models; borrows the optimizers and scalers.
class JobState {
 public:
  void add_model(const std::string& name, std::vector<NamedTensor> parameters,
                 const std::vector<NamedTensor>& buffers);
  void add_optimizer(const std::string& name, optim::Optimizer& optimizer);
  // The state and the numbers of a model with local steps, in place of those of an optimizer.
  void add_local(const std::string& name, LocalModel& model);
  void add_scaler(const std::string& name, GradScaler& scaler);
  // Error feedback of a model, which has memory when the job is prepared.
  void add_codec(const std::string& name, std::function<std::vector<NamedTensor>()> tensors);
  void keep(const std::string& name, const torch::Tensor& tensor);
  void add_streams(const torch::Tensor& positions);
  void add_noise_scale(const std::string& step, const torch::Tensor& sums);

  // Memory of the job, not copies.
  std::vector<NamedTensor> weights() const;
  std::vector<NamedTensor> tensors() const;  // weights, state, codec, local, then what is kept
  std::vector<NamedTensor> finite() const;   // those that must be finite to go on from them

  std::map<std::string, std::string> values() const;
  // Another state's values. Called before its values are read into tensors(): these then have the
  // lengths that they have there.
  void expect(const std::map<std::string, double>& values);
  // Called after that.
  void set_values(const std::map<std::string, double>& values);

 private:
  enum class Kind { kWeights, kState, kCodec, kLocal, kScaler, kKept };
  struct Value {
    std::string name;
    std::function<std::string()> get;
    std::function<void(double)> set;          // never to a negative number
    std::function<void(double)> expect = {};  // before tensors are read; may be empty
  };
  struct Part {
    Kind kind = Kind::kWeights;
    std::string name;  // the model's; a scaler's is that of a Step
    std::function<std::vector<NamedTensor>()> tensors;
    std::size_t finite = 0;  // how many of the first tensors must be finite
    std::vector<Value> values = {};
  };
  static Value rate_of(optim::Optimizer& optimizer);
  void add(Part part);
  bool is_only(const Part& part) const;
  std::vector<NamedTensor> named(const Part& part) const;
  std::vector<NamedTensor> all_of(Kind kind) const;
  std::string value_name(const Part& part, const Value& value) const;

  std::vector<Part> parts_;
};

// Numbers by name, as text that workers send each other: a line each. Names may have spaces.
std::string as_lines(const std::map<std::string, std::string>& numbers);
std::map<std::string, double> numbers_in(const std::string& lines);

}  // namespace lockstep::steps
