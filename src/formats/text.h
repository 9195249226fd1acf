// Any file as text, with one token per byte. The vocabulary is the sorted list of the bytes that
// occur. A token is an index into it.
//
// Failure: BadInput with the name of the file.
#pragma once

#include <string>
#include <string_view>

#include "formats/file_bytes.h"

namespace lockstep::formats {

struct Text {
  ByteVector vocabulary;  // sorted, each once
  ByteVector tokens;      // each below vocabulary.size()
};

// `shortest` is the number of bytes that the caller needs, such as one sequence and one more token.
Text parse_text(ByteSpan bytes, const std::string& file, std::size_t shortest = 1);
Text load_text(const std::string& path, std::size_t shortest = 1);

// The tokens of a text in the vocabulary of another text. Throws BadInput for a byte that is not in
// it.
ByteVector encode_text(ByteSpan vocabulary, std::string_view text);

// The text of some tokens. Throws BadInput for a token outside the vocabulary.
std::string decode_text(ByteSpan vocabulary, ByteSpan tokens);

}  // namespace lockstep::formats
