#include "base/written_pages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/fd.h"

namespace lockstep::base {
namespace {

// A word of /proc/self/pagemap: what the kernel's Documentation/admin-guide/mm/pagemap.rst says.
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
constexpr std::uint64_t kSwapped = std::uint64_t{1} << 62;
constexpr std::uint64_t kOfFile = std::uint64_t{1} << 61;  // also of a memfd

bool is_own(std::uint64_t word) {
  return (word & (kPresent | kSwapped)) != 0 && (word & kOfFile) == 0;
}

void add(std::vector<ByteRange>& ranges, std::size_t begin, std::size_t bytes) {
  if (!ranges.empty() && ranges.back().end == begin)
    ranges.back().end += bytes;
  else
    ranges.push_back({begin, begin + bytes});
}

}  // namespace

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// The file is opened each time: after a fork a descriptor would still show the parent.
std::vector<ByteRange> written_pages(const std::byte* mapping, ByteRange range) {
  const Fd file(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!file)
    throw Unavailable(fmt::format("cannot open /proc/self/pagemap: {}", std::strerror(errno)));
  const std::size_t page = page_bytes();
  std::array<std::uint64_t, 1024> words{};
  std::vector<ByteRange> found;
  for (std::size_t at = range.begin; at < range.end;) {
    const std::size_t wanted = std::min(words.size(), (range.end - at) / page);
    const std::uint64_t number = (reinterpret_cast<std::uintptr_t>(mapping) + at) / page;
    const ssize_t got = ::pread(file.get(), words.data(), wanted * sizeof words[0],
                                static_cast<off_t>(number * sizeof words[0]));
    if (got < static_cast<ssize_t>(sizeof words[0])) {
      throw Unavailable(
          fmt::format("cannot read /proc/self/pagemap: {}", std::strerror(got < 0 ? errno : EIO)));
    }
    const std::size_t pages = static_cast<std::size_t>(got) / sizeof words[0];
    for (std::size_t i = 0; i < pages; ++i) {
      if (is_own(words[i])) add(found, at + i * page, page);
    }
    at += pages * page;
  }
  return found;
}

std::int64_t page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

bool drop_written(std::byte* mapping, ByteRange range) {
  return ::madvise(mapping + range.begin, range.bytes(), MADV_DONTNEED) == 0;
}

}  // namespace lockstep::base
