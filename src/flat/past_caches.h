// Stores that go past the caches.
//
// An ordinary store first reads the line that it will overwrite. For memory that is larger than the
// caches, and that another worker reads next, this is a third of all traffic. On x86-64 these
// functions do without; on other processors they store as usual, because GCC offers nothing there.
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>

#include "flat/parity.h"

namespace lockstep::flat {

// A memory of fewer bytes stays in caches, where another worker finds it sooner.
inline constexpr std::size_t kPastCachesBytes = std::size_t{8} << 20;

// As std::memcpy. What was stored is there for other workers after the next atomic store.
void copy_past_caches(const void* from, void* out, std::size_t bytes);

// As copy_with_parity().
Parity copy_past_caches_with_parity(DType dtype, const void* from, void* out, std::size_t count);

}  // namespace lockstep::flat
