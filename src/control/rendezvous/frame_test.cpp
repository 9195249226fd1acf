#include "control/rendezvous/frame.h"

#include <gtest/gtest.h>

#include "control/rendezvous/message.h"

namespace lockstep::control {
namespace {

struct Wire {
  FrameSealer sealer{"key", Direction::kToServer};
  FrameOpener opener{"key", Direction::kToServer};
};

TEST(FrameTest, PayloadsArriveInOrderHoweverTheBytesAreCut) {
  Wire wire;
  std::string stream;
  for (const char* payload : {"one", "", "three"}) stream += wire.sealer.seal(payload);
  std::vector<std::string> got;
  for (const char byte : stream) {
    wire.opener.push(std::string_view(&byte, 1));
    while (auto payload = wire.opener.next()) got.push_back(*payload);
  }
  EXPECT_EQ(got, (std::vector<std::string>{"one", "", "three"}));
}

TEST(FrameTest, AnyAlteredBitBreaksTheStreamForGood) {
  const std::string genuine = FrameSealer("key", Direction::kToServer).seal("payload");
  for (std::size_t bit = 0; bit < genuine.size() * 8; ++bit) {
    std::string altered = genuine;
    altered[bit / 8] = static_cast<char>(altered[bit / 8] ^ (1 << (bit % 8)));
    FrameOpener opener("key", Direction::kToServer);
    // A longer announced length waits for bytes that make the tag wrong.
    opener.push(altered + std::string(64, '\0'));
    EXPECT_EQ(opener.next(), std::nullopt);
    opener.push(genuine);
    EXPECT_EQ(opener.next(), std::nullopt);
  }
}

TEST(FrameTest, RepeatedMovedOrReflectedFramesAreRefused) {
  Wire repeated;
  const std::string frame = repeated.sealer.seal("x");
  repeated.opener.push(frame + frame);
  EXPECT_EQ(repeated.opener.next(), "x");
  EXPECT_EQ(repeated.opener.next(), std::nullopt);
  EXPECT_TRUE(repeated.opener.broken());

  Wire moved;
  moved.sealer.seal("lost on the way");
  moved.opener.push(moved.sealer.seal("y"));
  EXPECT_EQ(moved.opener.next(), std::nullopt);
  EXPECT_TRUE(moved.opener.broken());

  FrameOpener reflected("key", Direction::kToClient);
  reflected.push(frame);
  EXPECT_EQ(reflected.next(), std::nullopt);
  EXPECT_TRUE(reflected.broken());
}

TEST(FrameTest, AnOverlongAnnouncementIsRefusedBeforeItsBytesCome) {
  FrameOpener opener("key", Direction::kToServer);
  opener.push(std::string_view("\x01\x00\x10\x00", 4));  // 1 MiB + 1
  EXPECT_EQ(opener.next(), std::nullopt);
  EXPECT_TRUE(opener.broken());
}

TEST(FrameTest, TheLargestPayloadFits) {
  Wire wire;
  const std::string payload(kMostFrameBytes, 'x');
  wire.opener.push(wire.sealer.seal(payload));
  EXPECT_EQ(wire.opener.next(), payload);
}

}  // namespace
}  // namespace lockstep::control
