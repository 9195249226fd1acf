// Where an update takes its gradients from.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "comm/core/parity.h"
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

  // Where the memories are watched: what each operand's parities are, piece by piece, and whose memory it is.
  std::vector<const comm::Parity*> parities;
  std::vector<int> workers;

  // This worker's own gradients, which have been averaged.
  static GradientSource own(const replica::Replicated& model);
  // The sum of all workers' banks, divided. Only where every worker reads all of them.
  static GradientSource everyones(const replica::Replicated& model,
                                  const plan::ShardedReduction& plan, double divided_by);

 private:
  void add(const replica::Replicated& model, int bank, int worker);
};

// Reads a source piece by piece, all of one type; for one thread.
class GradientReader {
 public:
  GradientReader(const GradientSource& source, DType dtype);

  DType dtype() const { return dtype_; }

  // A piece, by its number, from a byte of the layout on; valid until the next call.
  const void* read(std::size_t piece, std::size_t offset, std::size_t count);

  // The worker whose part of the last piece was not what it had written; none if all was well.
  std::optional<int> changed() const { return changed_; }

 private:
  void compare(std::size_t piece, comm::Parity seen, std::size_t count);

  const GradientSource& source_;
  DType dtype_;
  bool in_place_;
  std::optional<int> changed_;
  comm::TreeSum sum_;
  std::vector<const void*> at_;
  std::vector<double> scratch_;
};

}  // namespace lockstep::optim
