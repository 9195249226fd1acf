#include "bench/step/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <lockstep/errors.h>

#include "torch/step/arithmetic.h"

namespace lockstep::bench {
namespace {

// Templates, because not every LibTorch has all of these functions.

template <typename Flag>
constexpr Flag timing_flag() {
  if constexpr (requires { Flag::TIMING; }) {
    return Flag::TIMING;
  } else {
    return Flag::BACKEND_DEFAULT;
  }
}

template <typename Event>
double milliseconds_between(const Event& before, const Event& after) {
  if constexpr (requires { before.elapsedTime(after); }) {
    return before.elapsedTime(after);
  } else {
    throw Unavailable("bench step --device cuda wants LibTorch 2.4 or later");
  }
}

}  // namespace

std::string problem_with_cuda() {
  if (torch::cuda::is_available()) return {};
  return at::globalContext().hasCUDART() ? "this LibTorch sees no GPU; see `nvidia-smi`"
                                         : "this LibTorch has no CUDA";
}

void set_cuda_switches(bool deterministic) {
  at::globalContext().setBenchmarkCuDNN(!deterministic);
  if (deterministic) steps::use_deterministic_operators(true);
}

void DeviceMarks::mark() {
  c10::Event& event = events_.emplace_back(device_.type(), timing_flag<c10::EventFlag>());
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

std::vector<double> DeviceMarks::milliseconds() {
  torch::cuda::synchronize(device_.index());
  std::vector<double> times;
  for (std::size_t i = 1; i < events_.size(); ++i)
    times.push_back(milliseconds_between(events_[i - 1], events_[i]));
  return times;
}

}  // namespace lockstep::bench
