// The bytes of a file: read into memory, inflated if they are gzip, or mapped.
//
// Failure: BadInput with the name of the file; Unavailable if the disk fails or there is too little
//          memory. No header decides how much memory is taken, because it may lie: sizes come from
//          the file itself, or from what was inflated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"

namespace lockstep::formats {

// Every reader here refuses a file in this way: BadInput in one line, with the name of the file,
// what is wrong, and what to do.
[[noreturn]] void refuse(std::string_view file, std::string_view wrong, std::string_view remedy);

// Text from a file, made safe for one line of a message: control characters and broken bytes become
// \xNN, and long text is cut.
std::string printable(std::string_view text);

inline constexpr std::string_view kFetchAgain = "copy or download it again";

using ByteSpan = std::span<const std::uint8_t>;
using ByteVector = std::vector<std::uint8_t>;

// More than any data set that is read as a whole, and less than the memory of a training host.
inline constexpr std::size_t kMostBytes = std::size_t{8} << 30;

// An open regular file, and its size.
struct OpenFile {
  base::Fd fd;
  std::size_t bytes = 0;
};
OpenFile open_regular(const std::string& path);

// The bytes of a regular file.
ByteVector read_whole(const std::string& path, std::size_t most = kMostBytes);

// Decides by the first two bytes, not by the name.
bool is_gzip(ByteSpan bytes);

// Inflates all members of a gzip file and compares their checksums. `file` is the name in messages.
ByteVector inflate_gzip(ByteSpan bytes, const std::string& file, std::size_t most = kMostBytes);

// The bytes of a file, inflated if it is gzip. `most` limits both the file and the result.
ByteVector read_inflated(const std::string& path, std::size_t most = kMostBytes);

// A read-only mapping of a file. Pages come from the disk when they are read.
//
// Ownership: owns the mapping; spans of it are valid as long as it lives.
// Failure:   if somebody truncates the file while it is mapped, this process ends with SIGBUS.
//            Files of Lockstep are replaced, never truncated.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace lockstep::formats
