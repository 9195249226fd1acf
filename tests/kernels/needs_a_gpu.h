// For tests of kernels on a real GPU.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace lockstep::testing {

inline bool no_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
}

}  // namespace lockstep::testing

#define NEEDS_A_GPU() \
  if (no_gpu()) GTEST_SKIP() << "no GPU here"
