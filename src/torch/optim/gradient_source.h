// Where an update reads its gradients.
//
// That need not be one memory of averages. Where workers share memory, an update adds everybody's
// gradients while it reads them. This saves writing the averages to memory and reading them again.
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

// The sum of some memories, in the order of a plan, times a factor. A value; it borrows the
// memories.
struct GradientSource {
  plan::Reduction plan;
  const plan::Layout* layout = nullptr;    // of the memories: the model's, or its wide layout
  std::vector<const std::byte*> operands;  // the memories, in the order of the plan
  double factor = 1;

  // With parity, by operand: its parities by piece, and the rank whose memory it is. Else empty.
  std::vector<const flat::Parity*> parities;
  std::vector<int> workers;

  // Whether it is this memory alone, with no factor.
  bool is(const replica::FlatMemory& memory) const;

  // One memory with no factor. own() is that of this worker's gradients, which are averages
  // already.
  static GradientSource of(const replica::FlatMemory& memory, const plan::Layout& layout);
  static GradientSource own(const replica::Replicated& model);
  // The sum of all workers' banks, divided. Only if every worker reads all banks in shared memory.
  static GradientSource everyones(const replica::Replicated& model,
                                  const plan::ShardedReduction& plan, double divided_by);
};

// Reads a source piece by piece, for one thread. All pieces are of parameters of one type. Wider
// sums are rounded to it.
class GradientReader {
 public:
  GradientReader(const GradientSource& source, std::size_t entry, DType dtype);

  DType dtype() const { return dtype_; }

  // The gradient of a piece; valid until the next call. read_with_parity() also compares what it
  // reads with the parities of the source, if it has any.
  const void* read(const plan::Stretch& piece);
  const void* read_with_parity(std::size_t number, const plan::Stretch& piece);

  // The worker whose operand of the last piece has changed since it was written; nullopt if none
  // has.
  std::optional<int> changed() const { return changed_; }

 private:
  void find(const plan::Stretch& piece);
  const void* rounded(const void* values, const plan::Stretch& piece);
  void compare(std::size_t number, flat::Parity seen, std::size_t count);

  const GradientSource& source_;
  DType dtype_;
  DType sum_dtype_;  // of the source
  bool in_place_;    // one operand, no factor: read where it is
  std::optional<int> changed_;
  flat::TreeSum sum_;
  std::vector<const void*> at_;         // the piece in each operand
  std::vector<double> scratch_;         // its sum; double for the alignment
  std::vector<std::uint16_t> rounded_;  // its sum in a half type
};

}  // namespace lockstep::optim
