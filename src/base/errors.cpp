#include <lockstep/errors.h>

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
