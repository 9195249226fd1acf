// The launch sizes of kernels over elements. Each thread begins with one element and goes on in
// steps of the whole grid.
#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep::cuda {

inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kWarp = 32;  // threads that exchange values without memory

// Enough blocks to fill any device several times, and no more.
inline unsigned blocks_for(std::size_t elements) {
  constexpr std::size_t kMostBlocks = 4096;
  return static_cast<unsigned>(
      std::clamp<std::size_t>((elements + kThreads - 1) / kThreads, 1, kMostBlocks));
}

}  // namespace lockstep::cuda
