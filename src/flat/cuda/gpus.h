// The GPUs that this process can use. Every build has this; a build without CUDA finds none, and
// says so.
#pragma once

#include <string>

namespace lockstep::cuda {

struct FoundGpus {
  int count = 0;
  std::string missing;  // why there is none and what to do, in one line; empty if there is one
};

// An interface, so that tests can bring any number of GPUs.
//
// Threads:   any; use() concerns the thread that calls it.
// Blocking:  the first call in a process starts the driver, which can take some seconds.
// Failure:   use and model throw Unavailable, with the driver's words.
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
