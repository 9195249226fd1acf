#include "torch/step/round_reports.h"

#include <lockstep/errors.h>

#include <limits>

namespace lockstep::steps {

void RoundReports::add(const std::string& name, double sum, double weight) {
  if (!reported_.insert(name).second)
    throw BadInput("the metric " + name + " was reported twice in one step");
  sums_[name].sum += sum;
  sums_[name].weight += weight;
}

void RoundReports::hand_on(Reports& to) const {
  for (const auto& [name, report] : sums_) to.add(name, report.sum, report.weight);
}

void RoundReports::name_to(Reports& to) const {
  for (const auto& [name, report] : sums_) to.add(name, 0, 0);
}

void RoundReports::lose() {
  for (auto& [name, report] : sums_) report.sum = std::numeric_limits<double>::quiet_NaN();
}

}  // namespace lockstep::steps
