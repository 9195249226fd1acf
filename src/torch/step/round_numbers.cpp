#include "torch/step/round_numbers.h"

#include <lockstep/errors.h>

#include <utility>

namespace lockstep::steps {

// A round before it may have been broken off.
void RoundNumbers::begin_round() {
  round_ = {};
  shard_ = {};
}

RoundNumbers::Report& RoundNumbers::report(const std::string& name) {
  if (!reported_.insert(name).second)
    throw BadInput("the metric " + name + " was reported twice in one step");
  metrics_.insert(name);
  return shard_.reports[name];
}

void RoundNumbers::add(const std::string& name, const torch::Tensor& sum,
                       const torch::Tensor& weight) {
  Report& to = report(name);
  add_to(to.sum, sum, 1);
  add_to(to.weight, weight, 1);
}

void RoundNumbers::add(const std::string& name, double sum, double weight) {
  Report& to = report(name);
  to.sum.here += sum;
  to.weight.here += weight;
}

void RoundNumbers::end_shard(const Turn& whole) {
  shard_.shard = whole.shard.index;
  shard_.weight = whole.weight;
  shard_.samples = static_cast<double>(whole.shard.batch.samples);
  round_.push_back(std::exchange(shard_, {}));
}

PhaseResult::Local RoundNumbers::read(const Round& round) {
  PhaseResult::Local local;
  for (const OfShard& of : round) {
    local.weighted_losses[of.shard] = of.weight * (of.loss.here / of.samples);
    for (const auto& [name, report] : of.reports)
      local.reports[of.shard][name] = {report.sum.here, report.weight.here};
  }
  return local;
}

}  // namespace lockstep::steps
