#include "comm/shm/ring.h"

#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

namespace lockstep::comm {
namespace {

constexpr std::uint32_t kRingBytes = 1024;

class RingTest : public ::testing::Test {
 protected:
  RingTest()
      : segment_(Arena::create(Segment::bytes_for(2, kRingBytes)), 2, kRingBytes),
        writer_(segment_, 1),
        reader_(segment_, 1) {}

  static Frame frame_of(std::size_t bytes, std::uint64_t number) {
    return {Frame::Kind::kMessage, static_cast<std::uint32_t>(bytes), 7, number, bytes};
  }

  Segment segment_;
  RingWriter writer_;
  RingReader reader_;
};

TEST_F(RingTest, FramesOfEveryLengthComeOutAsTheyWentIn) {
  std::vector<char> bytes(600);
  std::iota(bytes.begin(), bytes.end(), 0);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_TRUE(writer_.room(length));
    writer_.write(frame_of(length, length), bytes.data());
    const auto frame = reader_.peek();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->bytes, length);
    EXPECT_EQ(frame->number, length);
    std::vector<char> got(length);
    reader_.take(*frame, got.data());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), bytes.begin()));
    EXPECT_FALSE(reader_.peek());
  }
}

TEST_F(RingTest, AFullRingHasNoRoomAndTheWriterSaysThatItWaits) {
  const std::vector<char> bytes(200);
  int written = 0;
  while (writer_.room(bytes.size())) writer_.write(frame_of(bytes.size(), written++), bytes.data());
  EXPECT_GT(written, 2);
  const auto frame = reader_.peek();
  reader_.take(*frame, nullptr);
  EXPECT_TRUE(reader_.writer_starves());
  EXPECT_FALSE(reader_.writer_starves());
  EXPECT_TRUE(writer_.room(bytes.size()));
}

TEST_F(RingTest, WhatIsNoFrameIsRefused) {
  writer_.write(frame_of(8, 1), "01234567");
  auto* kind = reinterpret_cast<std::uint32_t*>(segment_.ring(1));
  *kind = 99;
  EXPECT_THROW(reader_.peek(), Mismatch);
  *kind = 1;
  EXPECT_TRUE(reader_.peek());
  kind[1] = 1 << 30;  // longer than the ring
  EXPECT_THROW(reader_.peek(), Mismatch);
  segment_.positions(1).written.store(std::uint64_t{1} << 40);
  EXPECT_THROW(reader_.peek(), Mismatch);
}

TEST_F(RingTest, AWriterAndAReaderAtOnceLoseNothing) {
  constexpr std::uint64_t kFrames = 20'000;
  // Asleep, and not yielding: beside other busy programs each yield would cost their time slice.
  static constexpr std::chrono::microseconds kMoment{20};
  std::thread writing([this] {
    std::vector<std::uint64_t> words(60);
    for (std::uint64_t number = 0; number < kFrames; ++number) {
      const std::size_t length = 8 * (number % words.size());
      std::fill(words.begin(), words.end(), number);
      while (!writer_.room(length)) std::this_thread::sleep_for(kMoment);
      writer_.write(frame_of(length, number), words.data());
    }
  });
  for (std::uint64_t number = 0; number < kFrames;) {
    const auto frame = reader_.peek();
    if (!frame) {
      std::this_thread::sleep_for(kMoment);
      continue;
    }
    ASSERT_EQ(frame->number, number);
    std::vector<std::uint64_t> words(frame->bytes / 8);
    reader_.take(*frame, words.data());
    for (const auto word : words) ASSERT_EQ(word, number);
    ++number;
  }
  writing.join();
}

}  // namespace
}  // namespace lockstep::comm
