#include "formats/cifar10.h"

#include "formats/testing.h"

namespace lockstep::formats {
namespace {

std::string cifar_record(char label, char pixel) {
  return std::string(1, label) + std::string(kCifarImageBytes, pixel);
}

using Cifar10Test = FormatsTest;

TEST_F(Cifar10Test, LabelsAndImagesComeApart) {
  const std::string bytes = cifar_record(3, 'a') + cifar_record(9, 'b');
  const Cifar10 data = parse_cifar10(span_of(bytes), "f");
  EXPECT_EQ(data.labels, (ByteVector{3, 9}));
  ASSERT_EQ(data.images.size(), 2 * kCifarImageBytes);
  EXPECT_EQ(data.images[kCifarImageBytes - 1], 'a');
  EXPECT_EQ(data.images[kCifarImageBytes], 'b');
}

TEST_F(Cifar10Test, OtherSizesAndLabelsAreRefused) {
  const auto refused = [](const std::string& bytes, const std::string& part) {
    expect_refusal([&] { parse_cifar10(span_of(bytes), "the-file"); }, "the-file", part);
  };
  refused("", "has 0 bytes");
  refused(cifar_record(1, 'a') + "x", "has 3074 bytes");
  refused(cifar_record(1, 'a') + cifar_record(10, 'a'), "record 1 has label 10");
}

TEST_F(Cifar10Test, AllBatchesOfASplitAreRead) {
  std::filesystem::create_directory(directory_ / "cifar-10-batches-bin");
  for (char batch = 1; batch <= 5; ++batch) {
    put("cifar-10-batches-bin/data_batch_" + std::to_string(batch) + ".bin",
        cifar_record(batch, 'a'));
  }
  EXPECT_EQ(load_cifar10(directory_.string(), "train").labels, (ByteVector{1, 2, 3, 4, 5}));
  EXPECT_EQ(load_cifar10(path("cifar-10-batches-bin"), "train").labels.size(), 5U);
  expect_refusal([&] { load_cifar10(directory_.string(), "test"); }, "test_batch.bin",
                 "No such file");
  expect_refusal([&] { load_cifar10(directory_.string(), "t10k"); }, "'t10k'", "train or test");
}

}  // namespace
}  // namespace lockstep::formats
