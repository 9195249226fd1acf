#include "formats/text.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>

#include "formats/file_bytes.h"

namespace lockstep::formats {
namespace {

constexpr int kAbsent = -1;

// The token of each byte, or kAbsent.
std::array<int, 256> token_table(ByteSpan vocabulary) {
  std::array<int, 256> table{};
  table.fill(kAbsent);
  for (std::size_t i = 0; i < vocabulary.size(); ++i) table[vocabulary[i]] = static_cast<int>(i);
  return table;
}

}  // namespace

Text parse_text(ByteSpan bytes, const std::string& file, std::size_t shortest) {
  if (bytes.size() < shortest || bytes.empty()) {
    refuse(file,
           fmt::format("has {} bytes of text, fewer than the {} needed", bytes.size(),
                       std::max<std::size_t>(shortest, 1)),
           "take a longer text or a shorter sequence");
  }
  std::array<bool, 256> occurs{};
  for (const std::uint8_t byte : bytes) occurs[byte] = true;
  Text text;
  for (std::size_t byte = 0; byte < occurs.size(); ++byte) {
    if (occurs[byte]) text.vocabulary.push_back(static_cast<std::uint8_t>(byte));
  }
  const auto table = token_table(text.vocabulary);
  text.tokens.reserve(bytes.size());
  for (const std::uint8_t byte : bytes) {
    text.tokens.push_back(static_cast<std::uint8_t>(table[byte]));
  }
  return text;
}

Text load_text(const std::string& path, std::size_t shortest) {
  return parse_text(read_inflated(path), path, shortest);
}

ByteVector encode_text(ByteSpan vocabulary, std::string_view text) {
  const auto table = token_table(vocabulary);
  ByteVector tokens;
  tokens.reserve(text.size());
  for (const char c : text) {
    const int token = table[static_cast<unsigned char>(c)];
    if (token == kAbsent) {
      throw BadInput(
          fmt::format("the text has '{}', which the vocabulary of {} bytes does not have; take it "
                      "out, or train on text that has it",
                      printable({&c, 1}), vocabulary.size()));
    }
    tokens.push_back(static_cast<std::uint8_t>(token));
  }
  return tokens;
}

std::string decode_text(ByteSpan vocabulary, ByteSpan tokens) {
  std::string text;
  text.reserve(tokens.size());
  for (const std::uint8_t token : tokens) {
    if (token >= vocabulary.size()) {
      throw BadInput(
          fmt::format("there is no token {} in a vocabulary of {}; decode with the "
                      "vocabulary of the training",
                      token, vocabulary.size()));
    }
    text.push_back(static_cast<char>(vocabulary[token]));
  }
  return text;
}

}  // namespace lockstep::formats
