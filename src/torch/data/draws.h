// What a data set draws from LibTorch's default generator.
//
// That generator belongs to the process: loader threads would draw from it beside the model, and beside each other, in an
// order that is the machine's. So the operators that draw are asked to use another generator, on this thread alone: a
// dispatch key is switched on for it, with a kernel for every operator that has an optional generator among its
// arguments. All other operators fall through the key, which LibTorch's tables know in advance: they cost what they cost
// without it.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace lockstep::data {

// As long as it lives, what this thread draws on the CPU without naming a generator, or naming the default one, comes from
// one that begins with the seed. A draw on a GPU is BadInput: its default generator is the model's, too. Scopes nest.
class DrawScope {
 public:
  explicit DrawScope(std::uint64_t seed);
  ~DrawScope();
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

  // Made when something is drawn for the first time.
  const at::Generator& generator();

 private:
  std::uint64_t seed_;
  at::Generator generator_;
  DrawScope* outer_;
  c10::impl::IncludeDispatchKeyGuard included_;
};

}  // namespace lockstep::data
