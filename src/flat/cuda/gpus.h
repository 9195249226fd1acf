// The GPUs that this process can use. Here in every build: one without CUDA finds none, and says so.
#pragma once

#include <string>

namespace lockstep::cuda {

struct FoundGpus {
  int count = 0;
  std::string
      missing;  // why there is none and what to do about it, in one line; empty: there is one
};

// A seam: what follows from the number of GPUs is tested with made-up ones.
//
// Threads:   any; use() is for the thread that calls it.
// Blocking:  until the driver has started, which the first call in a process pays for: up to some seconds.
// Failure:   use and model throw Unavailable, saying why in the driver's words.
// Ownership: none.
class Gpus {
 public:
  virtual ~Gpus() = default;

  virtual FoundGpus find() = 0;

  // Makes it the current GPU of this thread.
  virtual void use(int index) = 0;

  // Its name and what its kernels are compiled for, such as "NVIDIA H200 sm_90".
  virtual std::string model(int index) = 0;
};

Gpus& gpus();

}  // namespace lockstep::cuda
