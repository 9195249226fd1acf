// The bytes of a file: read into memory, inflated when they are gzip, or mapped.
//
// Failure: BadInput naming the file; Unavailable when the disk fails or memory is short. Nothing is
//          allocated because a header says so: sizes come from the file, or from what was inflated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::formats {

// How every reader here says no: BadInput in one line that names the file, what is wrong with it,
// and what to do.

[[noreturn]] void refuse(std::string_view file, std::string_view wrong, std::string_view remedy);

// What came out of a file, fit for one line of a message: control characters and broken bytes
// become \xNN, and what is long is cut.
std::string printable(std::string_view text);

inline constexpr std::string_view kFetchAgain = "copy or download it again";

using ByteSpan = std::span<const std::uint8_t>;
using ByteVector = std::vector<std::uint8_t>;

// Above every data set that is read whole, and below the memory of a training host.
inline constexpr std::size_t kMostBytes = std::size_t{8} << 30;

// A regular file as it is.
ByteVector read_whole(const std::string& path, std::size_t most = kMostBytes);

// By the first two bytes, not by a name.
bool is_gzip(ByteSpan bytes);

// All members of a gzip file, their checksums held. `file` is for messages.
ByteVector inflate_gzip(ByteSpan bytes, const std::string& file, std::size_t most = kMostBytes);

// The file as it is, or inflated when it is gzip; `most` limits either.
ByteVector read_inflated(const std::string& path, std::size_t most = kMostBytes);

// A file, read-only, in memory as far as it is looked at.
//
// Ownership: holds the mapping; spans of it end with it.
// Failure:   whoever cuts the file short while it is mapped ends this process with SIGBUS. Files of
//            Lockstep are replaced, never cut.
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
