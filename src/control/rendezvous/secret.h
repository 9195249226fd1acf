// The job's secret: who knows it may join. It travels in an inherited descriptor or a private file,
// never in arguments, in the environment or in a log: other users can read those, in `ps`, in /proc and on disks.
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"

namespace lockstep::control {

inline constexpr std::size_t kLeastSecretBytes = 16;
inline constexpr std::size_t kMostSecretBytes = 4096;

// 32 bytes of the kernel's generator.
std::string make_secret();

// A memory file that holds the secret and can no longer change. Closes on exec: a launcher
// duplicates it into the worker and says its number in LOCKSTEP_SECRET_FD.
base::Fd seal_secret(std::string_view secret);

// Reads a sealed secret without moving the descriptor's position, so that every process of a worker
// can. BadInput when the descriptor is not open or not such a file.
std::string read_sealed_secret(int fd);

// Reads a secret file; white space at its end does not count. BadInput, with what to run,
// when it is absent, not a regular file, not ours or root's, open to group or others, or too short.
std::string read_secret_file(const std::string& path);

}  // namespace lockstep::control
