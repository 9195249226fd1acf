#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace lockstep::base {

void check_failed(const char* condition, const char* what, const char* file, int line) noexcept {
  std::fprintf(stderr, "lockstep: bug: %s (%s) at %s:%d; please report this\n", what, condition,
               file, line);
  std::abort();
}

}  // namespace lockstep::base
