// What LibTorch's autocast does on this thread, to do the same later or on another thread.
#pragma once

#include <lockstep/autocast.h>

namespace lockstep {

// The settings for one kind of device.
struct AutocastState {
  torch::DeviceType device;
  torch::ScalarType dtype;
  AutocastOptions options;

  static AutocastState of(torch::DeviceType device);
  // Switches to these settings as long as the result lives.
  Autocast again() const { return {device, dtype, options}; }
};

}  // namespace lockstep
