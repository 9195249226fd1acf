// The instructions that LibTorch and the libraries below it compute with on a CPU.
//
// Each library looks at the processor when it is first used. A variable may tell it to use fewer instructions. Then it
// chooses among kernels that round differently. So what counts is what a library says it uses, not what the processor has.
#pragma once

#include <dlfcn.h>
#include <lockstep/buffer.h>

#include <string>
#include <string_view>

namespace lockstep::device {

// "ATen AVX512, OpenBLAS Cooperlake, oneDNN avx512_core_amx": the libraries that are there and say it. The same as long as
// the process lives.
const std::string& instructions_in_use();

// The same for a device. Those of a GPU are not told here.
std::string instructions_on(Device device);

// ATen's part, found in the text of at::show_config(); "unknown" if it is not there.
std::string aten_instructions_in(std::string_view config);

// A function of a library that is loaded with LibTorch, such as OpenBLAS; null if no loaded library has it. Found by name at
// run time, because LibTorch may be built with one library or another.
template <typename Function>
Function* loaded_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace lockstep::device
