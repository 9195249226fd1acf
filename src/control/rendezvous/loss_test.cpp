#include "control/rendezvous/loss.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

namespace lockstep::control {
namespace {

TEST(LossTest, IsAboutTheFirstOtherWorkerThatTheFailureNames) {
  EXPECT_EQ(loss_of(0, ErrorKind::kPeerLost, {1}), (Loss{0, 1}));
  EXPECT_EQ(loss_of(0, ErrorKind::kTimeout, {3, 2}), (Loss{0, 3}));
  EXPECT_EQ(loss_of(0, ErrorKind::kUnavailable, {2}), (Loss{0, 2}));
}

TEST(LossTest, AFailureOfOnesOwnOrOfAllIsNone) {
  EXPECT_EQ(loss_of(1, ErrorKind::kPeerLost, {1}), std::nullopt);
  EXPECT_EQ(loss_of(1, ErrorKind::kTimeout, {}), std::nullopt);
  EXPECT_EQ(loss_of(0, ErrorKind::kMismatch, {1}), std::nullopt);
  EXPECT_EQ(loss_of(0, ErrorKind::kBadInput, {1}), std::nullopt);
}

TEST(LossTest, ArrivesAtTheLauncher) {
  const LossChannel channel = make_loss_channel();
  EXPECT_EQ(take_loss(channel.launcher.get()), std::nullopt);
  const LossTeller teller(channel.workers.get());
  teller.tell({4, 2});
  teller.tell({3, 2});
  EXPECT_EQ(take_loss(channel.launcher.get()), (Loss{4, 2}));
  EXPECT_EQ(take_loss(channel.launcher.get()), (Loss{3, 2}));
  EXPECT_EQ(take_loss(channel.launcher.get()), std::nullopt);
}

TEST(LossTest, WhatIsNoRecordIsSkipped) {
  const LossChannel channel = make_loss_channel();
  for (const char* text : {"x", "", "much longer than a record"})
    ::send(channel.workers.get(), text, std::char_traits<char>::length(text), 0);
  LossTeller(channel.workers.get()).tell({1, 0});
  EXPECT_EQ(take_loss(channel.launcher.get()), (Loss{1, 0}));
}

TEST(LossTest, ALauncherThatIsGoneHurtsNobody) {
  LossChannel channel = make_loss_channel();
  const LossTeller teller(channel.workers.get());
  channel.launcher.reset();
  teller.tell({0, 1});
}

// The program may have closed the inherited descriptor, and opened something of its own.
TEST(LossTest, WritesIntoNothingElse) {
  base::Pipe pipe = base::make_pipe();
  LossTeller(pipe.write.get()).tell({0, 1});
  LossTeller(std::nullopt).tell({0, 1});
  LossTeller(1 << 20).tell({0, 1});
  pipe.write.reset();
  EXPECT_EQ(base::read_exactly(pipe.read.get(), 1, Deadline::after(std::chrono::seconds(10))), "");
}

}  // namespace
}  // namespace lockstep::control
