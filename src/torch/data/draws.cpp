#include "torch/data/draws.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>

#include "torch/data/device_draws.h"

namespace lockstep::data {
namespace {

// LibTorch has no dispatch key for other libraries. This one is for torchdistx, which is no longer developed. All versions
// since 1.11 have the key, and none uses it.
constexpr auto kKey = c10::DispatchKey::DeferredInit;

thread_local DrawScope* current = nullptr;

bool is_generator(const c10::Argument& argument) {
  const auto* const optional = argument.type()->castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

bool draws(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), is_generator);
}

bool names_own_generator(const c10::IValue& value) {
  return value.isGenerator() && value.toGenerator().unsafeGetGeneratorImpl() !=
                                    at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl();
}

// The kernel for all of them: fills in the generator, and calls the operator's next kernel. An operator without a tensor,
// such as randn(sizes), has no device to look at; it calls others that have one.
void draw(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  const c10::IValue* tensor = nullptr;
  for (const c10::IValue& value : values) {
    if (tensor == nullptr && value.isTensor() && value.toTensor().defined()) tensor = &value;
  }
  for (std::size_t i = 0; i < arguments.size() && current != nullptr && tensor != nullptr; ++i) {
    if (!is_generator(arguments[i]) || names_own_generator(values[i])) continue;
    if (!draws_on_cpu(op, tensor->toTensor())) continue;
    (*stack)[stack->size() - arguments.size() + i] = current->generator();
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// These run when the program is loaded, because LibTorch's tables must not change while operators run.
TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, DeferredInit, library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !draws(op->schema())) continue;
    library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&draw>());
  }
}

}  // namespace

DrawScope::DrawScope(std::uint64_t seed) : seed_(seed), outer_(current), included_(kKey) {
  current = this;
}

DrawScope::~DrawScope() {
  current = outer_;
}

const at::Generator& DrawScope::generator() {
  if (!generator_.defined()) generator_ = at::detail::createCPUGenerator(seed_);
  return generator_;
}

}  // namespace lockstep::data
