// Where an update takes its gradients from.
//
// Not from one memory of averages: where workers share memory an update adds up everybody's gradients while it reads
// them, which saves a pass over all of memory to write the averages and another to read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "flat/parity.h"
#include "flat/tree_sum.h"
#include "plan/accumulation.h"
#include "plan/layout.h"
#include "plan/tree.h"

namespace lockstep::replica {
class FlatMemory;
class Replicated;
}  // namespace lockstep::replica

namespace lockstep::optim {

// The sum of some memories, in the order of a plan, times a factor.
struct GradientSource {
  plan::Reduction plan;
  const plan::Layout* layout = nullptr;    // of them: the model's, or its entries in wider types
  std::vector<const std::byte*> operands;  // of the plan
  double factor = 1;

  // Where the memories are watched: what each operand's parities are, piece by piece, and whose memory it is.
  std::vector<const flat::Parity*> parities;
  std::vector<int> workers;

  // Whether it is one memory, as it lies.
  bool is(const replica::FlatMemory& memory) const;

  // One memory in a layout, as it lies; this worker's own gradients, which have been averaged.
  static GradientSource of(const replica::FlatMemory& memory, const plan::Layout& layout);
  static GradientSource own(const replica::Replicated& model);
  // The sum of all workers' banks, divided. Only where every worker reads all of them.
  static GradientSource everyones(const replica::Replicated& model,
                                  const plan::ShardedReduction& plan, double divided_by);

 private:
  void add(const replica::Replicated& model, int bank, int worker);
};

// Reads a source piece by piece, all of parameters of one type, to which wider sums are rounded; for one thread.
class GradientReader {
 public:
  GradientReader(const GradientSource& source, std::size_t entry, DType dtype);

  DType dtype() const { return dtype_; }

  // A piece; valid until the next call. The watched one compares what it reads with what was written, if the source says
  // what that was.
  const void* read(const plan::Stretch& piece);
  const void* read_with_parity(std::size_t number, const plan::Stretch& piece);

  // The worker whose part of the last piece was not what it had written; none if all was well.
  std::optional<int> changed() const { return changed_; }

 private:
  void find(const plan::Stretch& piece);
  const void* rounded(const void* values, const plan::Stretch& piece);
  void compare(std::size_t number, flat::Parity seen, std::size_t count);

  const GradientSource& source_;
  DType dtype_;
  DType sum_dtype_;  // of the source
  bool in_place_;
  std::optional<int> changed_;
  flat::TreeSum sum_;
  std::vector<const void*> at_;
  std::vector<double> scratch_;
  std::vector<std::uint16_t> rounded_;
};

}  // namespace lockstep::optim
