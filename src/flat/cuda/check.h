// Errors of the device, by the name of the call.
#pragma once

#include "flat/cuda/runtime.h"

namespace lockstep::cuda {

// Unavailable, saying which call failed and why in the library's words.
[[noreturn]] void fail(const char* call, const char* why);

inline void check(cudaError_t result, const char* call) {
  if (result != cudaSuccess) fail(call, cudaGetErrorString(result));
}

}  // namespace lockstep::cuda
