// Random draws from LibTorch's default generator: of data sets, and of what a program does in an update.
//
// That generator belongs to the process. Loader threads would draw from it while the model and other loader threads do, in
// an order that depends on the machine. So a DrawScope gives a thread a generator of its own. It switches on a
// dispatch key for this thread; every operator with an optional generator has a kernel for that key, which fills in the
// scope's generator. All other operators fall through the key. LibTorch's tables know that in advance, so they are as
// fast as without it.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace lockstep::data {

// As long as it lives, this thread draws from a generator with this seed: on the CPU, if the call names no generator or the
// default one. A draw on a GPU is BadInput, because the default generator there is the model's, too. Scopes nest. A
// scope belongs to the thread that made it.
class DrawScope {
 public:
  explicit DrawScope(std::uint64_t seed);
  ~DrawScope();
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

  // Made by the first draw: most data sets draw nothing.
  const at::Generator& generator();

 private:
  std::uint64_t seed_;
  at::Generator generator_;
  DrawScope* outer_;  // current again when this one ends
  c10::impl::IncludeDispatchKeyGuard included_;
};

}  // namespace lockstep::data
