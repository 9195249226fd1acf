// How much memory this process uses.
#pragma once

#include <cstddef>

namespace lockstep::base {

// Its proportional set size: pages of its own, and its part of those that it shares with others, so that the sum over
// processes is what they use together. 0 if the kernel does not say.
std::size_t proportional_set_bytes();

// The same of the one mapping that an address lies in.
std::size_t proportional_set_bytes(const void* address);

}  // namespace lockstep::base
