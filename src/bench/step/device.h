// A GPU as `bench step` uses it: whether there is one, its switches, its clock.
#pragma once

#include <c10/core/Event.h>
#include <torch/torch.h>

#include <deque>
#include <string>
#include <vector>

namespace lockstep::bench {

// Why this process cannot train on a GPU, in a few words; empty if it can.
std::string problem_with_cuda();

// Sets the same switches as lockstep_bench_cuda.py: cuDNN searches for the fastest kernels, unless
// they must be deterministic.
void set_cuda_switches(bool deterministic);

// Marks in the work of a device. Each is an event on its current stream.
//
// Threads:   one: the thread that queues the work.
// Blocking:  milliseconds() waits for the device; mark() does not wait.
// Failure:   milliseconds() throws Unavailable if LibTorch's events have no times (before 2.4).
// Ownership: owns its events.
class DeviceMarks {
 public:
  explicit DeviceMarks(torch::Device device) : device_(device) {}

  void mark();

  // The times from each mark to the next.
  std::vector<double> milliseconds();

 private:
  torch::Device device_;
  std::deque<c10::Event> events_;
};

}  // namespace lockstep::bench
