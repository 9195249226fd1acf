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
  const std::string proof = feed(worker, encode(Challenge{1, std::string(kNonceBytes, 'n')}));
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

}  // namespace
}  // namespace lockstep::control
