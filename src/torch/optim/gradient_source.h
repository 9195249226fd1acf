// Where an update takes its gradients from.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/core/tree_sum.h"
#include "plan/accumulation.h"
#include "plan/tree.h"

namespace lockstep::replica {
class Replicated;
}

namespace lockstep::optim {

// The sum of some memories in the layout, in the order of a plan, times a factor.
struct GradientSource {
  plan::Reduction plan;
  std::vector<const std::byte*> operands;  // of the plan
  double factor = 1;

  // This worker's own gradients, which have been averaged.
  static GradientSource own(const replica::Replicated& model);
  // The sum of all workers' banks, divided. Only where every worker reads all of them.
  static GradientSource everyones(const replica::Replicated& model,
                                  const plan::ShardedReduction& plan, double divided_by);
};

// Elements that are updated at a time: gradient, parameter and two states stay in a second-level cache, and what is
// computed once per piece does not count.
inline constexpr std::size_t kUpdateElements = 8192;

// Reads a source piece by piece; for one thread.
class GradientReader {
 public:
  GradientReader(const GradientSource& source, DType dtype);

  // At most kUpdateElements from a byte of the layout on; valid until the next call.
  const void* read(std::size_t offset, std::size_t count);

 private:
  const GradientSource& source_;
  bool in_place_;
  comm::TreeSum sum_;
  std::vector<const void*> at_;
  std::vector<double> scratch_;
};

}  // namespace lockstep::optim
