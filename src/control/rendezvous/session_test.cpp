#include "control/rendezvous/session.h"

#include <gtest/gtest.h>

namespace lockstep::control {
namespace {

Session make(Role role, std::string_view secret = "the secret") {
  return {role, Handshake(role, secret)};
}

// Passes bytes to and fro, `at_once` at a time, until both are silent.
void talk(Session& a, Session& b, std::size_t at_once = 4096) {
  for (bool silent = false; !silent;) {
    silent = true;
    for (auto [from, to] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
      const std::string bytes = from->take_output();
      for (std::size_t i = 0; i < bytes.size(); i += at_once) {
        to->receive(std::string_view(bytes).substr(i, at_once));
        silent = false;
      }
    }
  }
}

TEST(SessionTest, TheFirstMessageTravelsWithTheProof) {
  Session worker = make(Role::kWorker);
  Session rendezvous = make(Role::kRendezvous);
  worker.send(Done{1, 2});
  rendezvous.receive(worker.take_output());
  worker.receive(rendezvous.take_output());
  EXPECT_FALSE(worker.open());
  rendezvous.receive(worker.take_output());
  EXPECT_EQ(rendezvous.next(), Message(Done{1, 2}));
}

TEST(SessionTest, MessagesFlowBothWaysWhateverTheCuts) {
  for (const std::size_t at_once : {1u, 7u, 4096u}) {
    Session worker = make(Role::kWorker);
    Session rendezvous = make(Role::kRendezvous);
    worker.send(Get{1, 2, "key"});
    talk(worker, rendezvous, at_once);
    EXPECT_EQ(rendezvous.next(), Message(Get{1, 2, "key"}));
    rendezvous.send(Value{1, "value"});
    rendezvous.send(Stored{2});
    talk(worker, rendezvous, at_once);
    EXPECT_EQ(worker.next(), Message(Value{1, "value"}));
    EXPECT_EQ(worker.next(), Message(Stored{2}));
    EXPECT_EQ(worker.next(), std::nullopt);
    EXPECT_EQ(worker.ending(), Ending::kNone);
  }
}

TEST(SessionTest, NothingOfAStrangerIsEverGivenOut) {
  Session stranger = make(Role::kWorker, "a guess");
  Session rendezvous = make(Role::kRendezvous);
  stranger.send(Put{1, "key", "poison"});
  talk(stranger, rendezvous);
  EXPECT_EQ(rendezvous.next(), std::nullopt);
  EXPECT_EQ(rendezvous.ending(), Ending::kNoSecret);
  EXPECT_EQ(stranger.ending(), Ending::kRefusedSecret);
}

TEST(SessionTest, AHijackedConnectionIsNoticed) {
  Session worker = make(Role::kWorker);
  Session rendezvous = make(Role::kRendezvous);
  talk(worker, rendezvous);
  ASSERT_TRUE(rendezvous.open());
  // Genuine bytes of another session on the same secret.
  Session other = make(Role::kWorker);
  Session other_end = make(Role::kRendezvous);
  talk(other, other_end);
  other.send(Put{1, "key", "poison"});
  rendezvous.receive(other.take_output());
  EXPECT_EQ(rendezvous.next(), std::nullopt);
  EXPECT_EQ(rendezvous.ending(), Ending::kBrokenFrame);
}

TEST(SessionTest, AGenuineFrameThatIsNoMessageEndsTheSession) {
  Session rendezvous = make(Role::kRendezvous);
  Handshake worker(Role::kWorker, "the secret");
  rendezvous.receive(worker.start());
  const std::string challenge = rendezvous.take_output();
  std::string_view input = challenge;
  rendezvous.receive(worker.receive(input));
  FrameSealer sealer(worker.session_key(), Direction::kToServer);
  rendezvous.receive(sealer.seal("\xff no message"));
  EXPECT_EQ(rendezvous.next(), std::nullopt);
  EXPECT_EQ(rendezvous.ending(), Ending::kNotOurs);
}

}  // namespace
}  // namespace lockstep::control
