#include "base/standard_output.h"

#include <fmt/format.h>
#include <lockstep/deadline.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace lockstep::base {
namespace {

// When poll(2) says that there is room, a pipe takes 4,096 bytes without waiting, but a terminal may take fewer.
constexpr std::size_t kPiece = 256;

int first_error = 0;  // errno of the first write that failed; EPIPE if the reader has gone

// Only the first error says why. After it the stream stays marked as failed, and later flushes have no errno.
void remember(int error) {
  if (first_error == 0) first_error = error != 0 ? error : EIO;
}

void flush() noexcept {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) remember(errno);
}

// Whether a piece can be written without waiting for a reader. Also true if writing would fail: then the write says
// why.
bool takes_more(int milliseconds) noexcept {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&output, 1, milliseconds) != 0;
}

// False if the reader has not taken all of it by the deadline.
bool put(std::string_view text, Deadline deadline) noexcept {
  while (!text.empty()) {
    if (!takes_more(deadline.left_ms())) return false;
    const std::size_t piece = std::min(text.size(), kPiece);
    std::fwrite(text.data(), 1, piece, stdout);
    flush();
    text.remove_prefix(piece);
  }
  return true;
}

}  // namespace

void say(std::string_view text, std::chrono::milliseconds patience) noexcept {
  if (!put(text, Deadline::after(patience))) remember(EAGAIN);
}

void say_in_passing(std::string_view text) noexcept {
  put(text, Deadline::after(std::chrono::milliseconds(0)));
}

void check_said() {
  if (first_error == 0) flush();
  // A reader that has gone, as after `| head`, wanted no more.
  if (first_error == 0 || first_error == EPIPE) return;
  throw Unavailable(
      fmt::format("cannot write to standard output ({}): some of what was to be shown is lost",
                  first_error == EAGAIN ? "nobody reads it" : std::strerror(first_error)));
}

}  // namespace lockstep::base
