// Where a reduction or an update reads its gradients.
//
// For an update that need not be one memory of averages. Where workers share memory, it adds
// everybody's gradients while it reads them. This saves writing the averages to memory and reading
// them again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/Parallel.h>

#include "flat/parity.h"
#include "flat/tree_sum.h"
#include "plan/accumulation.h"
#include "plan/layout.h"
#include "plan/slices.h"
#include "plan/tree.h"
#include "torch/divergence/watch.h"
#include "torch/replica/banks.h"

namespace lockstep::replica {

// The sum of some memories, in the order of a plan, times a factor. A value; it borrows the
// memories.
struct GradientSource {
  plan::Reduction plan;
  const plan::Layout* layout = nullptr;    // of the memories: the model's, or its wide layout
  std::vector<const std::byte*> operands;  // the memories, in the order of the plan
  double factor = 1;

  // The losses were multiplied by it. An update divides by it, and is skipped if a gradient is not
  // finite. Nothing: there is no scaler.
  std::optional<double> scale = {};

  // With parity, by operand: its parities by piece, and the rank whose memory it is. Else empty.
  std::vector<const flat::Parity*> parities;
  std::vector<int> workers;

  double limit = 0;  // elements are limited to −limit … limit, after the factor; 0: they are not

  bool measured =
      false;  // the update also finds the norm of the gradients: Update::measured_norm()

  // Whether it is this memory alone, with no factor.
  bool is(const FlatMemory& memory) const;

  // One memory with no factor.
  static GradientSource of(const FlatMemory& memory, const plan::Layout& layout);
  // The sum of the banks of all workers; of their fronts, if each worker has one gradient. Only if
  // every worker reads all banks in shared memory.
  static GradientSource everyones(const Banks& banks, const plan::ShardedReduction& plan,
                                  double factor);
  static GradientSource fronts(const Banks& banks, int workers, double factor);
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
  const void* limited(std::size_t count);
  const void* rounded(const void* values, const plan::Stretch& piece);
  void compare(std::size_t number, flat::Parity seen, std::size_t count);

  const GradientSource& source_;
  DType dtype_;
  DType sum_dtype_;  // of the source
  bool in_place_;    // one operand, no factor, no limit: read where it is
  std::optional<int> changed_;
  flat::TreeSum sum_;
  std::vector<const void*> at_;         // the piece in each operand
  std::vector<double> scratch_;         // its sum; double for the alignment
  std::vector<std::uint16_t> rounded_;  // its sum in a half type
};

// Some pieces of a model; on the CPU.
struct SomePieces {
  const ModelPlan& plan;
  divergence::PieceRange range;
};

// Calls `body` with the number of each piece and a reader of the source, on LibTorch's threads.
// Each thread has a reader of its own, because a reader has scratch memory.
template <typename Body>
void for_each_piece(const SomePieces& pieces, const GradientSource& source, const Body& body) {
  constexpr std::int64_t kGrain = 4;  // with fewer pieces a second thread costs more than it saves
  const auto& entries = pieces.plan.layout.entries();
  const auto first = static_cast<std::int64_t>(pieces.range.begin);
  const auto last = static_cast<std::int64_t>(pieces.range.end);
  at::parallel_for(first, last, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::optional<GradientReader> reader;
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const std::size_t entry = pieces.plan.pieces.all[i].entry;
      const DType dtype = entries[entry].dtype;
      if (!reader || reader->dtype() != dtype) reader.emplace(source, entry, dtype);
      body(i, *reader);
    }
  });
}

// Where a stretch begins in a memory of this layout.
inline std::size_t offset_of(const plan::Layout& layout, const plan::Stretch& stretch) {
  const plan::Entry& entry = layout.entries()[stretch.entry];
  return entry.offset + stretch.first * size_of(entry.dtype);
}

}  // namespace lockstep::replica
