// The instructions that LibTorch and the libraries below it compute with on a CPU.
//
// Each of them looks at the processor when it is first used, may be told by a variable to do with less, and then chooses
// among kernels that round differently. What it says of its choice is what counts, and not what the processor has.
#pragma once

#include <dlfcn.h>
#include <lockstep/buffer.h>

#include <string>
#include <string_view>

namespace lockstep::device {

// "ATen AVX512, OpenBLAS Cooperlake, oneDNN avx512_core_amx", without those that are not there or do not say. The same as
// long as the process lives.
const std::string& instructions_in_use();

// The same for what is computed on a device: a GPU has its own, which are not told here.
std::string instructions_on(Device device);

// ATen's own, out of at::show_config(); "unknown" if it is not in there.
std::string aten_instructions_in(std::string_view config);

// A function of a library that LibTorch may have brought along, such as OpenBLAS. Null where none of the loaded libraries
// has it.
template <typename Function>
Function* loaded_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace lockstep::device
