// Where an operator draws random numbers. A file of its own, because it asks for the device (tools/check_classes.py).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <lockstep/errors.h>

namespace lockstep::data {

// Whether the operator draws on the CPU. BadInput if it draws on a GPU, where LibTorch's default generator is the model's.
inline bool draws_on_cpu(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return tensor.is_cpu();
  throw BadInput(
      "random numbers are drawn on a GPU (" + op.operator_name().name +
      ") outside of the model, and LibTorch's default generator there is the model's: "
      "draw them on the CPU, or from a generator of the GPU that the program seeds (in a "
      "data set with the sample's seed)");
}

}  // namespace lockstep::data
