#include "formats/idx.h"

#include <numeric>

#include "formats/testing.h"

namespace lockstep::formats {
namespace {

std::string idx_bytes(const std::vector<std::uint32_t>& shape, std::string_view data,
                      char type = 8) {
  std::string bytes{0, 0, type, static_cast<char>(shape.size())};
  for (const std::uint32_t size : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(size >> shift));
  }
  return bytes.append(data);
}

void expect_bad_idx(const std::string& bytes, const std::string& part) {
  expect_refusal([&] { parse_idx(span_of(bytes), "the-file"); }, "the-file", part);
}

TEST(Idx, ShapeAndElementsComeOut) {
  const IdxArray array = parse_idx(span_of(idx_bytes({2, 1, 3}, "abcdef")), "f");
  EXPECT_EQ(array.shape, (std::vector<std::int64_t>{2, 1, 3}));
  EXPECT_EQ(std::string(array.data.begin(), array.data.end()), "abcdef");
}

TEST(Idx, WhatIsNoIdxFileIsRefused) {
  expect_bad_idx("", "too short");
  expect_bad_idx("\x89PNG and more", "two zero bytes");
  expect_bad_idx(idx_bytes({1}, "a", 13), "IDX type 13");
  expect_bad_idx(idx_bytes({}, ""), "0 dimensions");
  expect_bad_idx(idx_bytes(std::vector<std::uint32_t>(9, 1), "a"), "9 dimensions");
}

TEST(Idx, EveryCutAndOneByteMoreAreRefused) {
  const std::string whole = idx_bytes({2, 1, 3}, "abcdef");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse_idx(span_of(whole.substr(0, size)), "f"), BadInput) << size;
  }
  expect_bad_idx(whole.substr(0, 18), "only 2 bytes follow");
  expect_bad_idx(whole.substr(0, 9), "inside its IDX header");
  expect_bad_idx(whole + "g", "1 bytes after its 6 elements");
}

TEST(Idx, SizesThatOverflowAreRefusedWithoutAllocating) {
  expect_bad_idx(idx_bytes({0xffffffff, 0xffffffff, 0xffffffff}, "a"), "more than any file");
  expect_bad_idx(idx_bytes({0xffffffff, 0xffffffff}, "a"), "18446744065119617025 bytes");
}

class IdxPairTest : public FormatsTest {
 protected:
  IdxPair load() const { return load_idx_pair(directory_.string(), "train"); }
};

TEST_F(IdxPairTest, FilesAreFoundUnderTheirUsualNames) {
  const std::string images = idx_bytes({2, 2, 1}, "abcd");
  const std::string labels = idx_bytes({2}, std::string("\x03\x01"));
  put("train-images-idx3-ubyte", images);
  put("train-labels-idx1-ubyte.gz", gzip(labels));
  put("t10k-images.idx3-ubyte", images);
  put("t10k-labels.idx1-ubyte.gz", gzip(labels));
  for (const char* split : {"train", "t10k"}) {
    const IdxPair pair = load_idx_pair(directory_.string(), split);
    EXPECT_EQ(pair.images.shape, (std::vector<std::int64_t>{2, 2, 1}));
    EXPECT_EQ(pair.labels.data, (ByteVector{3, 1}));
    EXPECT_EQ(pair.classes, 4);
  }
}

TEST_F(IdxPairTest, WhatDoesNotFitTogetherIsRefused) {
  const std::string directory = directory_.string();
  expect_refusal([&] { load(); }, directory, "has no train-images-idx3-ubyte");
  put("train-images-idx3-ubyte", idx_bytes({2, 1, 1}, "ab"));
  expect_refusal([&] { load(); }, directory, "has no train-labels-idx1-ubyte");
  put("train-labels-idx1-ubyte", idx_bytes({3}, "abc"));
  expect_refusal([&] { load(); }, "train-labels", "3 labels for the 2 images");
  put("train-labels-idx1-ubyte", idx_bytes({2, 1}, "ab"));
  expect_refusal([&] { load(); }, "train-labels", "2 dimensions instead of 1");
  put("train-images-idx3-ubyte", idx_bytes({0, 28, 28}, ""));
  expect_refusal([&] { load(); }, "train-images", "holds nothing");
  expect_refusal([&] { load_idx_pair(directory, "test"); }, "'test'", "say train or t10k");
}

TEST(FashionMnist, ThePublishedFilesAreRead) {
  const std::string directory = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(directory)) {
    GTEST_SKIP() << "needs Debian's dataset-fashion-mnist";
  }
  const IdxPair train = load_idx_pair(directory, "train");
  const IdxPair test = load_idx_pair(directory, "t10k");
  EXPECT_EQ(train.images.shape, (std::vector<std::int64_t>{60000, 28, 28}));
  EXPECT_EQ(test.images.shape, (std::vector<std::int64_t>{10000, 28, 28}));
  EXPECT_EQ(train.classes, 10);
  // The data set has as many of each class; its first labels are as its authors print them.
  EXPECT_EQ(std::accumulate(test.labels.data.begin(), test.labels.data.end(), 0), 45 * 1000);
  EXPECT_EQ(ByteVector(train.labels.data.begin(), train.labels.data.begin() + 5),
            (ByteVector{9, 0, 0, 3, 0}));
}

}  // namespace
}  // namespace lockstep::formats
