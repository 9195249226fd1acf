#include "control/rendezvous/handshake.h"

#include <gtest/gtest.h>

namespace lockstep::control {
namespace {

using State = Handshake::State;

std::string feed(Handshake& side, std::string_view bytes) {
  return side.receive(bytes);
}

// What each side said, in order.
struct Record {
  std::string hello, challenge, worker_proof, rendezvous_proof;
};

Record shake(Handshake& worker, Handshake& rendezvous) {
  Record record;
  record.hello = worker.start();
  record.challenge = feed(rendezvous, record.hello);
  record.worker_proof = feed(worker, record.challenge);
  record.rendezvous_proof = feed(rendezvous, record.worker_proof);
  feed(worker, record.rendezvous_proof);
  return record;
}

TEST(HandshakeTest, TwoThatKnowTheSecretAgreeOnAKey) {
  Handshake worker(Role::kWorker, "the secret");
  Handshake rendezvous(Role::kRendezvous, "the secret");
  shake(worker, rendezvous);
  EXPECT_EQ(worker.state(), State::kOpen);
  EXPECT_EQ(rendezvous.state(), State::kOpen);
  EXPECT_EQ(worker.session_key(), rendezvous.session_key());
}

TEST(HandshakeTest, EverySessionHasAnotherKeyAndNeverShowsTheSecret) {
  std::string last_key;
  for (int i = 0; i < 3; ++i) {
    Handshake worker(Role::kWorker, "the secret");
    Handshake rendezvous(Role::kRendezvous, "the secret");
    const Record record = shake(worker, rendezvous);
    EXPECT_NE(worker.session_key(), last_key);
    last_key = worker.session_key();
    const std::string all =
        record.hello + record.challenge + record.worker_proof + record.rendezvous_proof;
    EXPECT_EQ(all.find("the secret"), std::string::npos);
    EXPECT_EQ(all.find(last_key), std::string::npos);
  }
}

TEST(HandshakeTest, AWorkerWithoutTheSecretIsRefusedAndLearnsNoProof) {
  Handshake worker(Role::kWorker, "a guess");
  Handshake rendezvous(Role::kRendezvous, "the secret");
  const Record record = shake(worker, rendezvous);
  EXPECT_EQ(rendezvous.ending(), Ending::kNoSecret);
  EXPECT_EQ(worker.ending(), Ending::kRefusedSecret);
  EXPECT_EQ(record.rendezvous_proof.size(), kRefusalBytes);
}

TEST(HandshakeTest, ARendezvousWithoutTheSecretIsFoundOut) {
  Handshake worker(Role::kWorker, "the secret");
  Handshake honest(Role::kRendezvous, "the secret");
  const std::string challenge = feed(honest, worker.start());
  feed(worker, challenge);
  feed(worker, encode(Proof{std::string(kProofBytes, 'x')}));
  EXPECT_EQ(worker.ending(), Ending::kNoSecret);
}

TEST(HandshakeTest, ARecordedProofIsWorthlessTheNextTime) {
  Handshake worker(Role::kWorker, "the secret");
  Handshake rendezvous(Role::kRendezvous, "the secret");
  const Record record = shake(worker, rendezvous);
  Handshake again(Role::kRendezvous, "the secret");
  feed(again, record.hello);
  feed(again, record.worker_proof);
  EXPECT_EQ(again.ending(), Ending::kNoSecret);
  Handshake other_worker(Role::kWorker, "the secret");
  feed(other_worker, record.challenge + record.rendezvous_proof);
  EXPECT_EQ(other_worker.ending(), Ending::kNoSecret);
}

TEST(HandshakeTest, AProofSentBackToItsMakerIsRefused) {
  Handshake worker(Role::kWorker, "the secret", std::string(kNonceBytes, 'n'));
  const std::string proof =
      feed(worker, encode(Challenge{kProtocolVersion, std::string(kNonceBytes, 'n')}));
  feed(worker, proof);
  EXPECT_EQ(worker.ending(), Ending::kNoSecret);
}

TEST(HandshakeTest, AnotherVersionIsNamedOnBothSides) {
  Handshake rendezvous(Role::kRendezvous, "the secret");
  const std::string answer =
      feed(rendezvous, encode(Hello{kProtocolVersion + 1, std::string(kNonceBytes, 'n')}));
  EXPECT_EQ(rendezvous.ending(), Ending::kOtherVersion);
  EXPECT_EQ(rendezvous.peer_version(), kProtocolVersion + 1);
  Handshake worker(Role::kWorker, "the secret");
  feed(worker, answer);
  EXPECT_EQ(worker.ending(), Ending::kOtherVersion);
}

TEST(HandshakeTest, GarbageEndsItWithoutAnAnswerThatHelps) {
  Handshake rendezvous(Role::kRendezvous, "the secret");
  const std::string answer = feed(rendezvous, std::string(kHelloBytes, 'x'));
  EXPECT_EQ(rendezvous.ending(), Ending::kNotOurs);
  EXPECT_EQ(answer.size(), kRefusalBytes);
  Handshake worker(Role::kWorker, "the secret");
  feed(worker, "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(worker.ending(), Ending::kNotOurs);
}

TEST(HandshakeTest, GenerationSecretsDependOnSecretNameAndSalt) {
  const std::string base = generation_secret("secret", "name", "salt");
  EXPECT_EQ(generation_secret("secret", "name", "salt"), base);
  EXPECT_NE(generation_secret("other", "name", "salt"), base);
  EXPECT_NE(generation_secret("secret", "eman", "salt"), base);
  EXPECT_NE(generation_secret("secret", "name", "tlas"), base);
  EXPECT_NE(generation_secret("secret", "names", "alt"), base);
}

Session make(Role role, std::string_view secret = "the secret") {
  return Session(Handshake(role, secret));
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
