#include "formats/file_bytes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/fd.h"

namespace lockstep::formats {

void refuse(std::string_view file, std::string_view wrong, std::string_view remedy) {
  throw BadInput(fmt::format("{}: {}; {}", file, wrong, remedy));
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string out;
  for (const char c : text.substr(0, kMost)) {
    if (c >= ' ' && c <= '~') {
      out.push_back(c);
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return text.size() > kMost ? out + "…" : out;
}

OpenFile open_regular(const std::string& path) {
  // O_NONBLOCK: or open() would wait for ever for the writer of a pipe.
  OpenFile file{base::Fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC))};
  struct stat info {};
  if (!file.fd || ::fstat(file.fd.get(), &info) != 0) {
    const int error = errno;
    refuse(path, fmt::format("cannot be read ({})", std::strerror(error)),
           error == ENOENT ? "check the path" : "check the path and its permissions");
  }
  if (!S_ISREG(info.st_mode)) {
    refuse(path, S_ISDIR(info.st_mode) ? "is a directory" : "is not a regular file", "name a file");
  }
  file.bytes = static_cast<std::size_t>(info.st_size);
  return file;
}

namespace {

[[noreturn]] void refuse_size(const std::string& file, std::size_t most) {
  refuse(file, fmt::format("holds more than {} bytes", most), "check that this is the file meant");
}

// Inflates one buffer of gzip members.
//
// zlib counts in 32 bits, so input goes in steps of at most kStepBytes. Output comes in steps, too,
// so that memory grows only with what is really there.
class GzipReader {
 public:
  GzipReader(ByteSpan input, const std::string& file, std::size_t most)
      : input_(input), file_(file), most_(most) {
    // 16: accept only the gzip format, with its checksum.
    if (inflateInit2(&stream_, MAX_WBITS + 16) != Z_OK) {
      throw Unavailable(fmt::format("{}: no memory to inflate it; free some", file));
    }
  }
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;
  ~GzipReader() { inflateEnd(&stream_); }

  ByteVector all() {
    do {
      member();
    } while (!input_.empty());
    return std::move(output_);
  }

 private:
  static constexpr std::size_t kStepBytes = std::size_t{1} << 16;

  void member() {
    inflateReset(&stream_);
    while (true) {
      const std::size_t given = std::min(input_.size(), kStepBytes);
      stream_.next_in = const_cast<Bytef*>(input_.data());  // zlib only reads it
      stream_.avail_in = static_cast<uInt>(given);
      const std::size_t before = output_.size();
      const int status = step();
      const std::size_t taken = given - stream_.avail_in;
      input_ = input_.subspan(taken);
      if (status == Z_STREAM_END) return;
      check(status);
      if (taken == 0 && output_.size() == before) {
        refuse(file_, "ends before its gzip data does", kFetchAgain);
      }
    }
  }

  int step() {
    const std::size_t before = output_.size();
    if (output_.capacity() - before < kStepBytes) {
      output_.reserve(std::max(output_.capacity() * 2, before + kStepBytes));
    }
    output_.resize(before + kStepBytes);
    stream_.next_out = output_.data() + before;
    stream_.avail_out = static_cast<uInt>(kStepBytes);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    output_.resize(before + kStepBytes - stream_.avail_out);
    if (output_.size() > most_) refuse_size(file_, most_);
    return status;
  }

  void check(int status) const {
    if (status == Z_OK || status == Z_BUF_ERROR) return;
    if (status == Z_MEM_ERROR) {
      throw Unavailable(fmt::format("{}: no memory to inflate it; free some", file_));
    }
    refuse(file_,
           fmt::format("is damaged gzip data ({})",
                       stream_.msg != nullptr ? stream_.msg : "it needs a dictionary"),
           kFetchAgain);
  }

  ByteSpan input_;
  const std::string& file_;
  std::size_t most_;
  z_stream stream_{};
  ByteVector output_;
};

}  // namespace

ByteVector read_whole(const std::string& path, std::size_t most) {
  const OpenFile file = open_regular(path);
  if (file.bytes > most) refuse_size(path, most);
  // Reads one byte more than the size, to see whether the file has grown. A file in /proc has size
  // 0 and may still have bytes.
  ByteVector bytes(std::max<std::size_t>(file.bytes + 1, 4096));
  std::size_t filled = 0;
  while (true) {
    const ssize_t got = ::read(file.fd.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw Unavailable(
          fmt::format("{}: cannot be read ({}); check the disk", path, std::strerror(errno)));
    }
    filled += static_cast<std::size_t>(got);
    if (filled > most) refuse_size(path, most);
    if (got == 0) break;
    if (filled == bytes.size()) bytes.resize(bytes.size() * 2);
  }
  bytes.resize(filled);
  return bytes;
}

bool is_gzip(ByteSpan bytes) {
  return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

ByteVector inflate_gzip(ByteSpan bytes, const std::string& file, std::size_t most) {
  if (!is_gzip(bytes)) refuse(file, "is not a gzip file", kFetchAgain);
  return GzipReader(bytes, file, most).all();
}

ByteVector read_inflated(const std::string& path, std::size_t most) {
  ByteVector bytes = read_whole(path, most);
  return is_gzip(bytes) ? inflate_gzip(bytes, path, most) : bytes;
}

MappedFile::MappedFile(const std::string& path) {
  const OpenFile file = open_regular(path);
  if (file.bytes == 0) return;  // nothing to map, and mmap would refuse
  void* const start = ::mmap(nullptr, file.bytes, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
  if (start == MAP_FAILED) {
    throw Unavailable(fmt::format("{}: cannot be mapped ({}); raise `ulimit -v` or free memory",
                                  path, std::strerror(errno)));
  }
  bytes_ = {static_cast<const std::byte*>(start), file.bytes};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace lockstep::formats
