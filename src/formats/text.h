// Any file as text, one token a byte: the vocabulary is the bytes that occur, in order, and a token
// is a place in it.
//
// Failure: BadInput naming the file.
#pragma once

#include <string>
#include <string_view>

#include "formats/file_bytes.h"

namespace lockstep::formats {

struct Text {
  ByteVector vocabulary;  // sorted, each once
  ByteVector tokens;      // each below vocabulary.size()
};

// `shortest` is what the caller needs, such as one sequence and one more token.
Text parse_text(ByteSpan bytes, const std::string& file, std::size_t shortest = 1);
Text load_text(const std::string& path, std::size_t shortest = 1);

// Text in the tokens of another text's vocabulary; BadInput for a byte that it does not have.
ByteVector encode_text(ByteSpan vocabulary, std::string_view text);

// The text that the tokens stand for; BadInput for a token outside the vocabulary.
std::string decode_text(ByteSpan vocabulary, ByteSpan tokens);

}  // namespace lockstep::formats
