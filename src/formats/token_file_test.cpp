#include "formats/token_file.h"

#include <unistd.h>

#include <numeric>

#include "base/bytes.h"
#include "formats/testing.h"

namespace lockstep::formats {
namespace {

using TokenFileTest = FormatsTest;

std::string header(std::uint32_t magic, std::uint32_t version, std::uint32_t tokens) {
  std::string bytes = base::ByteWriter().put(magic).put(version).put(tokens).take();
  bytes.resize(kTokenHeaderBytes);
  return bytes;
}

template <typename Token>
std::string tokens_of(std::vector<Token> tokens) {
  base::ByteWriter bytes;
  for (const Token token : tokens) bytes.put(token);
  return bytes.take();
}

std::vector<std::int64_t> read(const TokenFile& file, std::int64_t first, std::size_t count) {
  std::vector<std::int64_t> tokens(count);
  file.read(first, tokens);
  return tokens;
}

TEST_F(TokenFileTest, WithoutAHeaderTokensBeginWithTheFirstByte) {
  const TokenFile narrow(put("a", tokens_of<std::uint16_t>({1, 65535, 258, 0, 7})), 2);
  EXPECT_EQ(narrow.layout().tokens, 5);
  EXPECT_EQ(narrow.layout().vocabulary, 0);
  EXPECT_EQ(read(narrow, 0, 5), (std::vector<std::int64_t>{1, 65535, 258, 0, 7}));
  EXPECT_EQ(read(narrow, 3, 2), (std::vector<std::int64_t>{0, 7}));
  const TokenFile wide(put("b", tokens_of<std::uint32_t>({4'000'000'000U, 3, 65536})), 4);
  EXPECT_EQ(read(wide, 0, 3), (std::vector<std::int64_t>{4'000'000'000, 3, 65536}));
}

TEST_F(TokenFileTest, TheHeadersOfLlmCSayHowWideTokensAre) {
  const TokenFile gpt2(put("a", header(20240520, 1, 3) + tokens_of<std::uint16_t>({5, 6, 7})), 4);
  EXPECT_EQ(gpt2.layout().vocabulary, 50257);
  EXPECT_EQ(read(gpt2, 1, 2), (std::vector<std::int64_t>{6, 7}));
  const TokenFile llama(put("b", header(20240801, 7, 2) + tokens_of<std::uint32_t>({9, 100'000})),
                        2);
  EXPECT_EQ(llama.layout().vocabulary, 128256);
  EXPECT_EQ(read(llama, 0, 2), (std::vector<std::int64_t>{9, 100'000}));
}

TEST_F(TokenFileTest, WhatDoesNotFitIsRefused) {
  const auto expect_refused = [&](const std::string& bytes, int width, const char* why) {
    const std::string file = put("f", bytes);
    expect_refusal([&] { TokenFile(file, width); }, file, why);
  };
  expect_refused("abc", 2, "not a whole number");
  expect_refused("abcdef", 4, "not a whole number");
  expect_refused(header(20240520, 1, 3).substr(0, 100), 2, "ends in the header");
  expect_refused(header(20240520, 2, 0), 2, "version 2");
  expect_refused(header(20240520, 1, 4'000'000'000U) + "ab", 2, "4000000000 tokens take");
  expect_refused(header(20240801, 7, 1) + "abcdefgh", 2, "has 1032 bytes");
  expect_refusal([&] { TokenFile(path("none"), 2); }, "none", "cannot be read");
  EXPECT_EQ(TokenFile(put("empty", ""), 2).layout().tokens, 0);
}

TEST_F(TokenFileTest, AFileThatBecomesShorterIsAnErrorAndNoSignal) {
  const std::string name = put("f", std::string(20'000, 'x'));
  const TokenFile file(name, 2);
  EXPECT_EQ(read(file, 9'999, 1)[0], 'x' << 8 | 'x');
  ASSERT_EQ(::truncate(name.c_str(), 10'000), 0);
  EXPECT_EQ(read(file, 4'999, 1)[0], 'x' << 8 | 'x');
  expect_refusal([&] { read(file, 4'999, 2); }, name, "shorter");
}

// The file takes no room on the disk: it has a hole.
TEST_F(TokenFileTest, MayBeLargerThanMemory) {
  constexpr std::int64_t kTokens = std::int64_t{1} << 40;
  const std::string name = put("f", "");
  if (::truncate(name.c_str(), 2 * kTokens) != 0)
    GTEST_SKIP() << "this file system has no files of that size";
  {
    std::fstream file(name, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(2 * (kTokens - 2));
    file << "ab";
  }
  const TokenFile file(name, 2);
  EXPECT_EQ(file.layout().tokens, kTokens);
  EXPECT_EQ(read(file, kTokens - 3, 3), (std::vector<std::int64_t>{0, 'b' << 8 | 'a', 0}));
}

}  // namespace
}  // namespace lockstep::formats
