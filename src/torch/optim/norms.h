// Norms of gradients, weights and changes: of each parameter, and over the model.
//
//   row   one number for each block of the layout. A block belongs to one parameter, so one row
//         gives the norms of all parameters, and that of the model
//
// The owner of a block puts its number, in float64 and in a fixed order. After workers have met,
// each adds what it needs: a tree over the blocks of a parameter, or over all blocks. So no norm
// depends on slices, pieces or threads (docs/decisions/0020-norms-by-block.md).
#pragma once

#include <lockstep/comm.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "flat/fold.h"
#include "plan/layout.h"
#include "plan/tree.h"
#include "torch/replica/flat_memory.h"

namespace lockstep::optim {

// Owned by an Update on the CPU.
//
// Threads:   put() from several threads, each piece from one; norms when nobody puts.
// Blocking:  the constructor, which is collective.
// Failure:   Unavailable if there is too little memory.
// Ownership: owns its memory; borrows the layout.
class BlockNorms {
 public:
  enum class Row : std::size_t {
    kGradient,  // sums of squares …
    kWeight,
    kChange,
    kLargest,  // of the gradients: their largest magnitudes
  };

  // One copy per host, if each worker puts blocks of its own.
  BlockNorms(Comm& comm, const plan::Layout& layout, replica::Copies copies)
      : layout_(layout), memory_(comm, kRows * layout.blocks() * sizeof(double), copies) {}

  // Puts measure(first, count) for each block of a piece. `first` counts from its first element.
  template <typename Measure>
  void put(Row row, const plan::Stretch& piece, const Measure& measure) {
    double* const numbers = row_of(row) + layout_.entries()[piece.entry].first_block +
                            piece.first / plan::kBlockElements;
    for (std::size_t done = 0; done < piece.count; done += plan::kBlockElements) {
      const std::size_t count = std::min(plan::kBlockElements, piece.count - done);
      numbers[done / plan::kBlockElements] = measure(done, count);
    }
  }
  // Of the values of a piece.
  struct Values {
    DType dtype;
    const void* first;
  };
  void put_squares(Row row, const plan::Stretch& piece, const Values& values) {
    put_each(row, piece, values, flat::sum_of_squares);
  }
  void put_largest(const plan::Stretch& piece, const Values& values) {
    put_each(Row::kLargest, piece, values, flat::largest);
  }

  // Over all parameters, and of one.
  double norm(Row row) const { return norm_of(row, 0, layout_.blocks()); }
  double norm(Row row, std::size_t entry) const {
    const plan::Entry& of = layout_.entries()[entry];
    return norm_of(row, of.first_block, of.blocks());
  }

 private:
  static constexpr std::size_t kRows = 4;

  double* row_of(Row row) const {
    return reinterpret_cast<double*>(memory_.data()) +
           static_cast<std::size_t>(row) * layout_.blocks();
  }
  template <typename Measure>
  void put_each(Row row, const plan::Stretch& piece, const Values& values, const Measure& measure) {
    put(row, piece, [&](std::size_t first, std::size_t count) {
      const auto* const from = static_cast<const std::byte*>(values.first);
      return measure(values.dtype, from + first * size_of(values.dtype), count);
    });
  }
  double norm_of(Row row, std::size_t first, std::size_t count) const {
    const double* const numbers = row_of(row) + first;
    if (row == Row::kLargest) return flat::largest(DType::kFloat64, numbers, count);
    return std::sqrt(plan::tree_sum({numbers, count}));
  }

  const plan::Layout& layout_;
  replica::FlatMemory memory_;
};

}  // namespace lockstep::optim
