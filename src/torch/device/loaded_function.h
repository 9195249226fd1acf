// Functions of libraries that LibTorch may have brought along, such as OpenBLAS's.
#pragma once

#include <dlfcn.h>

namespace lockstep::device {

// Null where none of the loaded libraries has it.
template <typename Function>
Function* loaded_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace lockstep::device
