// The job's secret: a process that knows it may join. It travels in an inherited descriptor or a private
// file. It is never in arguments, in the environment or in a log, because other users can read those.
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"

namespace lockstep::control {

inline constexpr std::size_t kLeastSecretBytes = 16;
inline constexpr std::size_t kMostSecretBytes = 4096;

// 32 bytes of the kernel's generator.
std::string make_secret();

// A sealed memory file with the secret. It closes on exec; the keeper leaves it open only in
// workers, and LOCKSTEP_SECRET_FD says its number.
base::Fd seal_secret(std::string_view secret);

// Reads a sealed secret. It does not move the descriptor's position, which all processes that have
// inherited it share. BadInput when the descriptor is not open or not such a file.
std::string read_sealed_secret(int fd);

// Reads a secret file; white space at its end does not count. BadInput, with what to run,
// when it is absent, not a regular file, not ours or root's, open to group or others, or too short.
std::string read_secret_file(const std::string& path);

}  // namespace lockstep::control
