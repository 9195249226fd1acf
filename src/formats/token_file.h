// Files of tokens: whole numbers of 16 or 32 bits, little-endian. They may be larger than memory.
//
//   without a header   as nanoGPT's: tokens from the first byte on; the caller says how wide they are
//   of llm.c           256 numbers of 32 bits, then tokens: 20240520, 1, count: 16 bits, of GPT-2;
//                      20240801, 7, count: 32 bits, of Llama 3
//
// Failure: BadInput with the name of the file; Unavailable if the disk fails.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/fd.h"
#include "formats/file_bytes.h"

namespace lockstep::formats {

struct TokenLayout {
  std::int64_t first_byte = 0;
  int token_bytes = 2;
  std::int64_t tokens = 0;
  std::int64_t vocabulary = 0;  // 0: the file does not say
};

inline constexpr std::size_t kTokenHeaderBytes = 1024;

// From the first bytes of a file, at most kTokenHeaderBytes, and its size. `token_bytes` is for a
// file without a header.
TokenLayout parse_token_layout(ByteSpan head, std::uint64_t file_bytes, int token_bytes,
                               const std::string& file);

// An open file of tokens, which is read in parts. It is not mapped: a mapping saves a few
// microseconds per window, and a file that becomes shorter would end the process with SIGBUS.
//
// Threads:   any, at once.
// Blocking:  as long as the disk takes.
// Failure:   as above.
// Ownership: owns a descriptor.
class TokenFile {
 public:
  TokenFile(const std::string& path, int token_bytes);

  const std::string& path() const { return path_; }
  const TokenLayout& layout() const { return layout_; }

  // The tokens from `first` on; as many as there is place for. All of them must be in the file.
  void read(std::int64_t first, std::span<std::int64_t> tokens) const;

 private:
  std::string path_;
  base::Fd fd_;
  TokenLayout layout_;
};

}  // namespace lockstep::formats
