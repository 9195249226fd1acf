// Finds bits that changed though nobody wrote them.
//
// The parity of a stretch is the XOR of the bits of all its elements. It does not depend on their
// order. One flipped bit, or one element that was overwritten, always shows in it. The loops that
// touch the elements anyway can compute it, with one more operation for every two elements
// (rows.h). These loops are those of fold.h and update_loops.h.
#pragma once

#include <lockstep/buffer.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "flat/fold.h"

namespace lockstep::flat {

using Parity = std::uint64_t;

Parity parity(DType dtype, const void* from, std::size_t count);

// Of a stretch before and after it was updated in place.
struct Parities {
  Parity before = 0;
  Parity after = 0;
};

// combine(), and the parity of one operand or of both together.
enum class ParityOf : std::uint8_t { kLeft = 1, kRight = 2, kBoth = 3 };
Parity combine_with_parity(const Fold& fold, const void* left, const void* right, void* out,
                           std::size_t count, ParityOf which);

// add_four(), and the parity of those operands for which `watched` is true.
Parity add_four_with_parity(const Fold& fold, const std::array<const void*, 4>& operands,
                            const std::array<bool, 4>& watched, void* out, std::size_t count);

// scale(), and the parity of `from`.
Parity scale_with_parity(DType dtype, double factor, const void* from, void* out,
                         std::size_t count);

// out[i] = 0 + from[i], which is from[i], except that −0 becomes +0. Returns the parity of `out`.
Parity copy_with_parity(DType dtype, const void* from, void* out, std::size_t count);

// into[i] = into[i] + from[i], and the parities of `into`.
Parities add_with_parity(DType dtype, void* into, const void* from, std::size_t count);

}  // namespace lockstep::flat
