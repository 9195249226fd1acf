// Why a link ended, as plain data. It is kept for every later call, and sent to the peers, so that
// all workers report the same failure.
#pragma once

#include <lockstep/errors.h>

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm {

struct Failure {
  ErrorKind kind = ErrorKind::kPeerLost;
  std::vector<int> ranks;
  std::string text;
};

Failure failure_from(const Error& error);

// "is it stopped, slow …?": why a peer may be silent.
const char* silence_hint(bool over_network) noexcept;

// What worker `rank` tells when others wait for it, while it waits for `peer`.
Failure waiting_failure(int rank, int peer, bool over_network);
// What ended this worker, `rank`. An Error says it itself. Anything else (no memory, the system, our
// own bug) is an Unavailable of this rank, with base::diagnosis as its text.
Failure failure_of(int rank, const std::exception& error);
[[noreturn]] void raise(const Failure& failure);

// A notice has a fixed size, so that a receiver can post memory for it before there is a failure.
inline constexpr std::size_t kNoticeBytes = 1024;
std::string encode_notice(const Failure& failure);
std::optional<Failure> decode_notice(std::string_view bytes);

}  // namespace lockstep::comm
