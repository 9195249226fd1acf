// Finding a bit that has changed on its own.
//
// The parity of a stretch is the XOR of its elements' bits. It says nothing of order, but a single flipped bit, or a
// single element that was overwritten, always shows in it; and it can be worked out by the loops that touch the
// elements anyway, which are kernels.h's with one more operation for every two elements (rows.h).
#pragma once

#include <lockstep/buffer.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "flat/fold.h"

namespace lockstep::flat {

using Parity = std::uint64_t;

Parity parity(DType dtype, const void* from, std::size_t count);

// Before and after something was written in place.
struct Parities {
  Parity before = 0;
  Parity after = 0;
};

// combine(), and the parity of one operand or of both together.
enum class ParityOf : std::uint8_t { kLeft = 1, kRight = 2, kBoth = 3 };
Parity combine_with_parity(const Fold& fold, const void* left, const void* right, void* out,
                           std::size_t count, ParityOf which);

// add_four(), and the parity of those operands that are watched.
Parity add_four_with_parity(const Fold& fold, const std::array<const void*, 4>& operands,
                            const std::array<bool, 4>& watched, void* out, std::size_t count);

// scale(), and the parity of `from`.
Parity scale_with_parity(DType dtype, double factor, const void* from, void* out,
                         std::size_t count);

// out[i] = 0 + from[i], which is from[i] but for −0; the parity of `out`.
Parity copy_with_parity(DType dtype, const void* from, void* out, std::size_t count);

// into[i] = into[i] + from[i], and the parities of `into`.
Parities add_with_parity(DType dtype, void* into, const void* from, std::size_t count);

}  // namespace lockstep::flat
