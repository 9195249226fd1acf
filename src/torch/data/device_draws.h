// On which device an operator draws random numbers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace lockstep::data {

// Whether a generator of the CPU serves it. BadInput on a GPU, where LibTorch's default generator is the model's.
bool draws_on_cpu(const c10::OperatorHandle& op, const at::Tensor& tensor);

}  // namespace lockstep::data
