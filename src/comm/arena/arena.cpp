#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/arena.h>
#include <lockstep/errors.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/fd.h"

namespace lockstep {
namespace {

// Nobody can change the size or add seals. Without this, a peer that shrinks the memfd would end
// every worker that touches the lost pages, with SIGBUS. Writing stays possible: F_SEAL_WRITE and a
// writable shared mapping exclude each other.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::size_t round_up_to_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
}

// `kind`: MAP_SHARED or MAP_PRIVATE; with MAP_FIXED it replaces what is mapped at `where`.
std::byte* map(int fd, std::size_t bytes, int kind, void* where = nullptr) {
  void* memory = ::mmap(where, bytes, PROT_READ | PROT_WRITE, kind, fd, 0);
  if (memory == MAP_FAILED) {
    throw Unavailable(
        fmt::format("cannot map {} bytes of shared memory: {}", bytes, std::strerror(errno)));
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

Arena Arena::create(std::size_t bytes) {
  // A memfd of any size can be mapped. If there is too little memory, the first touch fails, with a
  // signal. So ask before.
  const std::size_t available = available_memory_bytes();
  if (bytes > available) {
    throw Unavailable(
        fmt::format("an arena of {} bytes does not fit: {} bytes are available to this "
                    "process; use a smaller model or fewer workers on this host",
                    bytes, available));
  }
  const std::size_t size = round_up_to_pages(bytes);
  base::Fd fd(::memfd_create("lockstep-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(size)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    const int why = errno;
    const char* hint = why == EFBIG                     ? "; raise `ulimit -f`"
                       : why == EMFILE || why == ENFILE ? "; raise `ulimit -n`"
                                                        : "";
    throw Unavailable(
        fmt::format("cannot make shared memory of {} bytes: {}{}", size, std::strerror(why), hint));
  }
  std::byte* memory = map(fd.get(), size, MAP_SHARED);
  return {fd.release(), memory, size};
}

Arena Arena::attach(int fd, std::size_t expected_bytes) {
  const std::size_t size = round_up_to_pages(expected_bytes);
  base::Fd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) {
    throw Unavailable(
        fmt::format("cannot copy a descriptor: {}; raise `ulimit -n`", std::strerror(errno)));
  }
  const int seals = ::fcntl(own.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    throw Mismatch("the descriptor is not a sealed arena; the workers have different builds");
  }
  struct stat status {};
  if (::fstat(own.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) != size) {
    throw Mismatch(
        fmt::format("the arena has {} bytes where {} were expected; the workers disagree on "
                    "the model",
                    status.st_size, size));
  }
  std::byte* memory = map(own.get(), size, MAP_SHARED);
  return {own.release(), memory, size};
}

Arena::Arena(Arena&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      private_data_(std::exchange(other.private_data_, nullptr)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(private_data_, other.private_data_);
  return *this;
}

void Arena::map_privately() {
  if (private_data_ == nullptr) private_data_ = map(fd_, size_, MAP_PRIVATE);
}

void Arena::close_descriptor() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Arena::show(const Arena& other) {
  LOCKSTEP_CHECK(other.fd_ >= 0 && other.size_ <= size_, "an arena shows one of its size");
  map(other.fd_, other.size_, MAP_SHARED | MAP_FIXED, data_);
  if (private_data_ != nullptr) map(other.fd_, other.size_, MAP_PRIVATE | MAP_FIXED, private_data_);
}

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, size_);
  if (private_data_ != nullptr) ::munmap(private_data_, size_);
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace lockstep
