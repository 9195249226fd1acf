#include "formats/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/check.h"

namespace lockstep::formats {
namespace {

struct Known {
  std::uint32_t magic;
  std::uint32_t version;
  int token_bytes;
  std::int64_t vocabulary;
};
constexpr Known kKnown[] = {{20240520, 1, 2, 50257}, {20240801, 7, 4, 128256}};

std::uint32_t number_at(ByteSpan bytes, std::size_t at) {
  return std::uint32_t{bytes[at]} | std::uint32_t{bytes[at + 1]} << 8 |
         std::uint32_t{bytes[at + 2]} << 16 | std::uint32_t{bytes[at + 3]} << 24;
}

TokenLayout with_header(const Known& known, ByteSpan head, std::uint64_t file_bytes,
                        const std::string& file) {
  if (head.size() < kTokenHeaderBytes)
    refuse(file, "ends in the header of a token file", kFetchAgain);
  const std::uint32_t version = number_at(head, 4);
  if (version != known.version) {
    refuse(file, fmt::format("is a token file of version {}", version),
           fmt::format("write it with version {}", known.version));
  }
  const std::uint64_t tokens = number_at(head, 8);
  const std::uint64_t expected =
      kTokenHeaderBytes + tokens * static_cast<std::uint64_t>(known.token_bytes);
  if (file_bytes != expected) {
    refuse(file, fmt::format("has {} bytes, and {} tokens take {}", file_bytes, tokens, expected),
           kFetchAgain);
  }
  return {static_cast<std::int64_t>(kTokenHeaderBytes), known.token_bytes,
          static_cast<std::int64_t>(tokens), known.vocabulary};
}

// Fewer than asked for at the end of the file.
std::size_t read_at(int fd, std::int64_t first, std::span<std::uint8_t> bytes,
                    const std::string& file) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::pread(fd, bytes.data() + done, bytes.size() - done,
                                static_cast<off_t>(first + static_cast<std::int64_t>(done)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw Unavailable(
          fmt::format("{}: cannot be read: {}; check the disk", file, std::strerror(errno)));
    }
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace

TokenLayout parse_token_layout(ByteSpan head, std::uint64_t file_bytes, int token_bytes,
                               const std::string& file) {
  if (head.size() >= sizeof(std::uint32_t)) {
    const std::uint32_t magic = number_at(head, 0);
    for (const Known& known : kKnown) {
      if (magic == known.magic) return with_header(known, head, file_bytes, file);
    }
  }
  const auto width = static_cast<std::uint64_t>(token_bytes);
  if (file_bytes % width != 0) {
    refuse(file, fmt::format("has {} bytes: not a whole number of tokens of {}", file_bytes, width),
           "check that it is a file of tokens, and how many bytes they have");
  }
  return {0, token_bytes, static_cast<std::int64_t>(file_bytes / width), 0};
}

TokenFile::TokenFile(const std::string& path, int token_bytes) : path_(path) {
  LOCKSTEP_CHECK(token_bytes == 2 || token_bytes == 4, "tokens have 16 or 32 bits");
  OpenFile file = open_regular(path);
  fd_ = std::move(file.fd);
  std::array<std::uint8_t, kTokenHeaderBytes> head{};
  const std::size_t there = read_at(fd_.get(), 0, head, path);
  layout_ = parse_token_layout(ByteSpan(head).first(there), file.bytes, token_bytes, path);
}

// The bytes are read into the end of the place for the tokens, which are at least twice as wide: widening from the front
// never writes to a byte that is still to be read.
void TokenFile::read(std::int64_t first, std::span<std::int64_t> tokens) const {
  const auto width = static_cast<std::size_t>(layout_.token_bytes);
  LOCKSTEP_CHECK(first >= 0 && first + static_cast<std::int64_t>(tokens.size()) <= layout_.tokens,
                 "tokens of a file are asked for where it has some");
  const std::size_t bytes = tokens.size() * width;
  auto* const end = reinterpret_cast<std::uint8_t*>(tokens.data() + tokens.size());
  const std::span<std::uint8_t> packed(end - bytes, bytes);
  const std::int64_t at = layout_.first_byte + first * layout_.token_bytes;
  if (read_at(fd_.get(), at, packed, path_) != bytes)
    refuse(path_, "has become shorter since it was opened", "do not change data in use");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::uint8_t* const token = packed.data() + i * width;
    std::int64_t value = token[0] | token[1] << 8;
    if (width == 4) value |= std::int64_t{token[2]} << 16 | std::int64_t{token[3]} << 24;
    tokens[i] = value;
  }
}

}  // namespace lockstep::formats
