// A GPU as `bench step` uses it: whether there is one, its switches, its clock.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::bench {

// Why this process cannot train on a GPU, in a few words; empty if it can.
std::string problem_with_cuda();

// As lockstep_bench_cuda.py has them: cuDNN searches for its kernels, unless they shall be deterministic.
void set_cuda_switches(bool deterministic);

// Moments in the work of a device: an event on its current stream each.
//
// Threads:   one, that which gives the device its work.
// Blocking:  milliseconds() waits for the device; mark() for nothing.
// Failure:   Unavailable from milliseconds() where LibTorch's events tell no times (before 2.4).
// Ownership: keeps its events.
class DeviceMarks {
 public:
  explicit DeviceMarks(torch::Device device);
  ~DeviceMarks();
  DeviceMarks(const DeviceMarks&) = delete;
  DeviceMarks& operator=(const DeviceMarks&) = delete;

  void mark();

  // From each mark to the next.
  std::vector<double> milliseconds();

 private:
  struct Events;
  torch::Device device_;
  std::unique_ptr<Events> events_;
};

}  // namespace lockstep::bench
