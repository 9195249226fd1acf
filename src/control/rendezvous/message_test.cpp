#include "control/rendezvous/message.h"

#include <gtest/gtest.h>

#include "base/hash.h"

namespace lockstep::control {
namespace {

std::vector<Message> one_of_each() {
  return {
      Join{1, 2, 4, 900, 1000, "0.1.0", "tcp", "node7", 4711, true},
      Put{2, "key", std::string("va\0lue", 6)},
      Get{3, 500, "key"},
      Done{4, 100},
      GiveUp{"no route"},
      Welcome{5, 7, "name", "salt", 1, {0, 2}, 1, true},
      Stored{6},
      Value{7, ""},
      Finished{8},
      Failed{9, ErrorKind::kMismatch, "ranks 1 and 2 disagree", {1, 2}},
      Closing{},
      NodeJoin{1, 2, 4, "0.1.0", "run train", "node7", 4711, "no program", 127, "kill@5:1:update"},
      NodeStart{"name",
                "tcp:10.0.0.1:4711",
                "node0",
                29500,
                {{"node0", 4}, {"node1", 2}},
                {"--steps", "3"},
                {"A=1"}},
      NodeEvent{NodeEvent::Kind::kLoss, 2, 5, 4711, -1},
      NodeOrders{{15, 18}, true, {1, 2}, {0}, 3},
      NodeVerdict{7, 2, true, 1, "rank 5 failed", 5, true},
      Beat{}};
}

TEST(MessageTest, EveryKindIsReadBackAsItWasWritten) {
  for (const Message& message : one_of_each()) {
    EXPECT_EQ(decode_message(encode(message)), message) << message.index();
  }
}

TEST(MessageTest, ShortenedOrLengthenedBytesAreNoMessage) {
  for (const Message& message : one_of_each()) {
    const std::string whole = encode(message);
    for (std::size_t length = 0; length < whole.size(); ++length) {
      EXPECT_EQ(decode_message(whole.substr(0, length)), std::nullopt);
    }
    EXPECT_EQ(decode_message(whole + '\0'), std::nullopt);
  }
}

TEST(MessageTest, UnknownKindsAreNoMessage) {
  for (int kind = static_cast<int>(std::variant_size_v<Message>); kind < 256; ++kind) {
    EXPECT_EQ(decode_message(std::string(1, static_cast<char>(kind))), std::nullopt);
  }
}

TEST(MessageTest, AnnouncedLengthsBeyondTheBytesAreRefusedBeforeAnythingIsTaken) {
  // A Value that announces 4 GiB.
  const std::string hostile("\x07\x00\x00\x00\x00\xff\xff\xff\xff", 9);
  EXPECT_EQ(decode_message(hostile), std::nullopt);
  // A Failed that announces 4 billion ranks.
  std::string ranks = encode(Failed{1, ErrorKind::kTimeout, "", {}});
  ranks.replace(ranks.size() - 4, 4, "\xff\xff\xff\xff");
  EXPECT_EQ(decode_message(ranks), std::nullopt);
}

TEST(MessageTest, LongTextsForPeopleAreCutNotRefused) {
  const auto message = decode_message(encode(GiveUp{std::string(100'000, 'x')}));
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(std::get<GiveUp>(*message).why.size(), kMostTextBytes);
}

TEST(MessageTest, HandshakeMessagesHaveTheirSizeAndAreReadBack) {
  const std::string nonce = base::random_bytes(kNonceBytes);
  const std::string hello = encode(Hello{kProtocolVersion, nonce});
  ASSERT_EQ(hello.size(), kHelloBytes);
  EXPECT_EQ(decode_hello(hello)->nonce, nonce);
  const std::string challenge = encode(Challenge{kProtocolVersion, nonce});
  ASSERT_EQ(challenge.size(), kChallengeBytes);
  EXPECT_EQ(handshake_reply_bytes(challenge[0]), kChallengeBytes);
  EXPECT_EQ(decode_challenge(challenge)->nonce, nonce);
  const std::string proof = encode(Proof{nonce});
  ASSERT_EQ(proof.size(), kProofMessageBytes);
  EXPECT_EQ(decode_proof(proof)->digest, nonce);
  const std::string refusal = encode(Refusal{RefusalReason::kSecret, 3});
  ASSERT_EQ(refusal.size(), kRefusalBytes);
  EXPECT_EQ(decode_refusal(refusal)->version, 3);
  EXPECT_EQ(decode_hello(challenge), std::nullopt);
  EXPECT_EQ(decode_proof(challenge), std::nullopt);
}

}  // namespace
}  // namespace lockstep::control
