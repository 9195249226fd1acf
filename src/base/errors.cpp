// The two kinds of failure: the world's are thrown, our own bugs stop the process.
#include <lockstep/errors.h>

#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace lockstep {

const char* name(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::kPeerLost:
      return "PeerLost";
    case ErrorKind::kTimeout:
      return "Timeout";
    case ErrorKind::kMismatch:
      return "Mismatch";
    case ErrorKind::kBadInput:
      return "BadInput";
    case ErrorKind::kUnavailable:
      return "Unavailable";
  }
  return "Error";
}

void raise(ErrorKind kind, const std::string& message, std::vector<int> ranks) {
  switch (kind) {
    case ErrorKind::kPeerLost:
      throw PeerLost(message, std::move(ranks));
    case ErrorKind::kTimeout:
      throw Timeout(message, std::move(ranks));
    case ErrorKind::kMismatch:
      throw Mismatch(message, std::move(ranks));
    case ErrorKind::kBadInput:
      throw BadInput(message, std::move(ranks));
    case ErrorKind::kUnavailable:
      throw Unavailable(message, std::move(ranks));
  }
  throw Error(kind, message, std::move(ranks));
}

}  // namespace lockstep

namespace lockstep::base {

void check_failed(const char* condition, const char* what, const char* file, int line) noexcept {
  std::fprintf(stderr, "lockstep: bug: %s (%s) at %s:%d; please report this\n", what, condition,
               file, line);
  std::abort();
}

}  // namespace lockstep::base
