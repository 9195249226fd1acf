// Stands in for lockstep/autocast.h until that header is here; then this file goes, and loops.cpp includes that one.
#pragma once

#include <lockstep/errors.h>
#include <torch/torch.h>

namespace lockstep {

// Refuses: a step that ran in float32 instead would be a wrong number.
class Autocast {
 public:
  Autocast(torch::DeviceType, torch::Dtype) {
    throw Unavailable("this Lockstep has no autocast: give --precision float32");
  }
};

}  // namespace lockstep
