#include "formats/text.h"

#include "formats/testing.h"

namespace lockstep::formats {
namespace {

using TextTest = FormatsTest;

TEST_F(TextTest, TheVocabularyIsTheBytesThatOccurInOrder) {
  const Text text = parse_text(span_of("banana\xff"), "f");
  EXPECT_EQ(text.vocabulary, (ByteVector{'a', 'b', 'n', 0xff}));
  EXPECT_EQ(text.tokens, (ByteVector{1, 0, 2, 0, 2, 0, 3}));
  EXPECT_EQ(decode_text(text.vocabulary, text.tokens), "banana\xff");
}

TEST_F(TextTest, All256BytesHaveATokenEach) {
  std::string all;
  for (int byte = 255; byte >= 0; --byte) all.push_back(static_cast<char>(byte));
  const Text text = parse_text(span_of(all), "f");
  EXPECT_EQ(text.vocabulary.size(), 256U);
  EXPECT_EQ(text.tokens.front(), 255);
  EXPECT_EQ(text.tokens.back(), 0);
}

TEST_F(TextTest, AFileIsReadGzipOrNot) {
  const std::string text = "to be or not to be";
  EXPECT_EQ(load_text(put("plain", text)).tokens, load_text(put("packed", gzip(text))).tokens);
}

TEST_F(TextTest, TooLittleTextIsRefused) {
  expect_refusal([] { parse_text(span_of("abc"), "the-file", 4); }, "the-file", "3 bytes");
  expect_refusal([] { parse_text({}, "the-file", 0); }, "the-file", "fewer than the 1 needed");
}

TEST_F(TextTest, OtherTextIsEncodedInTheSameVocabularyOrRefused) {
  const Text text = parse_text(span_of("abc"), "f");
  EXPECT_EQ(encode_text(text.vocabulary, "cab"), (ByteVector{2, 0, 1}));
  expect_refusal([&] { encode_text(text.vocabulary, "a\n"); }, "'\\x0a'", "vocabulary of 3");
  expect_refusal([&] { decode_text(text.vocabulary, ByteVector{3}); }, "token 3",
                 "vocabulary of 3");
}

}  // namespace
}  // namespace lockstep::formats
