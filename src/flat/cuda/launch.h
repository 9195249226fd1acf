// The shape of kernels that go over elements, each thread from its first in steps of the whole grid.
#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep::cuda {

inline constexpr unsigned kThreads = 256;

// As many blocks as fill any device several times over, and no more.
inline unsigned blocks_for(std::size_t elements) {
  constexpr std::size_t kMostBlocks = 4096;
  return static_cast<unsigned>(
      std::clamp<std::size_t>((elements + kThreads - 1) / kThreads, 1, kMostBlocks));
}

}  // namespace lockstep::cuda
