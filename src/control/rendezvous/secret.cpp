#include "control/rendezvous/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/hash.h"

namespace lockstep::control {
namespace {

constexpr std::size_t kGeneratedBytes = 32;
constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

// Reads up to one byte more than a secret may have, so that the caller sees if it is too long.
std::string read_from_start(int fd) {
  std::string bytes(kMostSecretBytes + 1, '\0');
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got =
        ::pread(fd, bytes.data() + filled, bytes.size() - filled, static_cast<off_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    filled += static_cast<std::size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

void check_private(const std::string& path, const struct stat& file) {
  if (!S_ISREG(file.st_mode)) {
    throw BadInput(fmt::format("the secret file {} is not a regular file", path));
  }
  if (file.st_uid != ::geteuid() && file.st_uid != 0) {
    throw BadInput(
        fmt::format("the secret file {0} belongs to user {1}, not to us; run: chown {2} {0}", path,
                    file.st_uid, ::geteuid()));
  }
  if ((file.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw BadInput(
        fmt::format("the secret file {0} is open to others (mode {1:o}); run: chmod 600 {0}", path,
                    file.st_mode & 07777));
  }
}

}  // namespace

std::string make_secret() {
  return base::random_bytes(kGeneratedBytes);
}

base::Fd seal_secret(std::string_view secret) {
  base::Fd fd(::memfd_create("lockstep-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool written =
      fd && ::write(fd.get(), secret.data(), secret.size()) == static_cast<ssize_t>(secret.size());
  if (!written || ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    throw Unavailable(
        fmt::format("cannot hold the job's secret in a memory file: {}", std::strerror(errno)));
  }
  return fd;
}

std::string read_sealed_secret(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    throw BadInput(
        fmt::format("LOCKSTEP_SECRET_FD={} is not the launcher's secret: {}; start this "
                    "program with its inherited descriptors open, or without the variable",
                    fd, seals < 0 ? std::strerror(errno) : "it can still be changed"));
  }
  std::string secret = read_from_start(fd);
  if (secret.size() < kLeastSecretBytes || secret.size() > kMostSecretBytes) {
    throw BadInput(fmt::format("LOCKSTEP_SECRET_FD={} holds no secret of {} to {} bytes", fd,
                               kLeastSecretBytes, kMostSecretBytes));
  }
  return secret;
}

std::string read_secret_file(const std::string& path) {
  // O_NONBLOCK: a named pipe must not hold us up before it is refused.
  const base::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    throw BadInput(
        fmt::format("cannot read the secret file {0}: {1}; make one with: (umask 077; openssl rand "
                    "-hex 32 > {0})",
                    path, std::strerror(errno)));
  }
  struct stat file {};
  ::fstat(fd.get(), &file);
  check_private(path, file);
  std::string secret = read_from_start(fd.get());
  secret.erase(secret.find_last_not_of(" \t\r\n") + 1);
  if (secret.size() < kLeastSecretBytes || secret.size() > kMostSecretBytes) {
    throw BadInput(fmt::format(
        "the secret file {0} holds {1} bytes, not {2} to {3}; run: openssl rand -hex 32 > {0}",
        path, secret.size(), kLeastSecretBytes, kMostSecretBytes));
  }
  return secret;
}

}  // namespace lockstep::control
