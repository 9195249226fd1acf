// Where a loss reports its metrics; see Shard::report().
#pragma once

#include <torch/torch.h>

#include <string>

namespace lockstep::steps {

class Reports {
 public:
  virtual ~Reports() = default;
  virtual void add(const std::string& name, const torch::Tensor& sum,
                   const torch::Tensor& weight) = 0;
  virtual void add(const std::string& name, double sum, double weight) = 0;
};

}  // namespace lockstep::steps
