#include "formats/file_bytes.h"

#include <sys/stat.h>

#include "formats/testing.h"

namespace lockstep::formats {
namespace {

std::string text_from(const ByteVector& bytes) {
  return {bytes.begin(), bytes.end()};
}

// Neither constant nor hard to compress, and longer than a piece of the inflater.
std::string long_text() {
  std::string text;
  for (std::uint64_t i = 0; i < 200'000; ++i) text += std::to_string(i * i % 7919);
  return text;
}

using FileBytes = FormatsTest;

TEST_F(FileBytes, AFileIsReadWholeUpToTheLimit) {
  const std::string file = put("file", "12345");
  EXPECT_EQ(text_from(read_whole(file)), "12345");
  EXPECT_EQ(text_from(read_whole(file, 5)), "12345");
  expect_refusal([&] { read_whole(file, 4); }, file, "more than 4 bytes");
  EXPECT_TRUE(read_whole(put("empty", "")).empty());
  EXPECT_GT(read_whole("/proc/self/status").size(), 100U);  // a file that says it has no bytes
}

TEST_F(FileBytes, WhatIsNoFileIsRefusedAndAPipeDoesNotHang) {
  const std::string pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_refusal([&] { read_whole(path("absent")); }, path("absent"), "No such file");
  expect_refusal([&] { read_whole(directory_.string()); }, directory_.string(), "is a directory");
  expect_refusal([&] { read_whole(pipe); }, pipe, "not a regular file");
  expect_refusal([&] { MappedFile mapped(path("absent")); }, path("absent"), "No such file");
}

TEST_F(FileBytes, GzipIsKnownByItsBytesNotByItsName) {
  const std::string text = long_text();
  EXPECT_EQ(text_from(read_inflated(put("plain.gz", text))), text);
  EXPECT_EQ(text_from(read_inflated(put("packed", gzip(text)))), text);
  EXPECT_EQ(text_from(inflate_gzip(span_of(gzip("")), "empty")), "");
}

TEST_F(FileBytes, MembersOneAfterTheOtherAreOneFile) {
  EXPECT_EQ(text_from(inflate_gzip(span_of(gzip("one ") + gzip("") + gzip("two")), "f")),
            "one two");
}

TEST_F(FileBytes, EveryCutOfAGzipFileIsRefused) {
  const std::string packed = gzip("some text that is long enough to have a middle");
  for (std::size_t size = 0; size < packed.size(); ++size) {
    EXPECT_THROW(inflate_gzip(span_of(packed.substr(0, size)), "f"), BadInput) << size;
  }
  expect_refusal([&] { inflate_gzip(span_of(packed.substr(0, packed.size() - 3)), "the-file"); },
                 "the-file", "ends before its gzip data does");
}

TEST_F(FileBytes, EveryChangedBitOfGzipDataIsRefused) {
  const std::string packed = gzip("some text that is long enough to have a middle");
  for (std::size_t i = 10; i < packed.size(); ++i) {  // the first ten bytes have bits without a say
    std::string changed = packed;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    EXPECT_THROW(inflate_gzip(span_of(changed), "f"), BadInput) << i;
  }
  std::string checksum = packed;
  checksum[packed.size() - 6] ^= 1;
  expect_refusal([&] { inflate_gzip(span_of(checksum), "f"); }, "f", "incorrect data check");
}

TEST_F(FileBytes, BytesAfterGzipDataAreRefused) {
  expect_refusal([] { inflate_gzip(span_of(gzip("text") + "more"), "f"); }, "f",
                 "damaged gzip data");
}

TEST_F(FileBytes, ABombStopsAtTheLimit) {
  const std::string bomb = gzip(std::string(std::size_t{64} << 20, '\0'));
  ASSERT_LT(bomb.size(), std::size_t{1} << 20);
  expect_refusal([&] { inflate_gzip(span_of(bomb), "bomb", 1 << 20); }, "bomb",
                 "more than 1048576 bytes");
}

TEST_F(FileBytes, AMappingHasTheBytesAndMoves) {
  MappedFile first(put("file", "12345"));
  MappedFile second = std::move(first);
  ASSERT_EQ(second.bytes().size(), 5U);
  EXPECT_EQ(second.bytes()[4], std::byte{'5'});
  second = MappedFile(put("empty", ""));
  EXPECT_TRUE(second.bytes().empty());
}

TEST(Refuse, WhatCameOutOfAFileStaysOnOneLine) {
  EXPECT_EQ(printable("a\nb\xff"), "a\\x0ab\\xff");
  EXPECT_EQ(printable(std::string(100, 'x')).find("…"), 60U);
}

}  // namespace
}  // namespace lockstep::formats
