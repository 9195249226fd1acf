// What losses have reported in an asynchronous round.
#pragma once

#include <torch/torch.h>

#include <map>
#include <set>
#include <string>

#include "torch/step/phase_result.h"
#include "torch/step/reports.h"

namespace lockstep::steps {

// What the tasks of this worker have reported, added up.
//
// Threads:   one caller at a time.
// Blocking:  never, but a tensor of a GPU is waited for.
// Failure:   BadInput for a name that is reported twice in one step.
// Ownership: a value.
class RoundReports : public Reports {
 public:
  void add(const std::string& name, const torch::Tensor& sum,
           const torch::Tensor& weight) override {
    add(name, sum.item<double>(), weight.item<double>());
  }
  void add(const std::string& name, double sum, double weight) override;
  void next_step() { reported_.clear(); }
  void hand_on(Reports& to) const;
  // Only the names: what was reported does not count.
  void name_to(Reports& to) const;
  // Some of what was reported is not known any more: sums are NaN.
  void lose();

 private:
  std::map<std::string, PhaseResult::Report> sums_;
  std::set<std::string> reported_;  // in this step
};

}  // namespace lockstep::steps
