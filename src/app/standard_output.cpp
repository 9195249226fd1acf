#include "app/standard_output.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace lockstep::app {
namespace {

int first_error = 0;  // errno of the first write that failed

void flush() noexcept {
  errno = 0;
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (failed && first_error == 0) first_error = errno != 0 ? errno : EIO;
}

}  // namespace

void say(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush();
}

void check_said() {
  flush();
  if (first_error == 0) return;
  throw Unavailable(
      fmt::format("cannot write to standard output ({}): some of what was to be shown is lost",
                  std::strerror(first_error)));
}

}  // namespace lockstep::app
