#include "base/pair_proof.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace lockstep::base {
namespace {

PairWorld world_of(int rank, const std::string& secret = "s", const std::string& name = "w") {
  return {name, secret, rank, 3};
}

// Hands over what each wants until both stop.
void shake(PairProof& caller, PairProof& listener) {
  std::string to_listener = caller.start();
  std::string to_caller;
  const auto take = [](PairProof& proof, std::string& from) {
    std::string answer;
    while (proof.wants() > 0 && from.size() >= proof.wants()) {
      const std::size_t wanted = proof.wants();
      answer += proof.receive(std::string_view(from).substr(0, wanted));
      from.erase(0, wanted);
    }
    return answer;
  };
  for (int i = 0; i < 4; ++i) {
    to_caller += take(listener, to_listener);
    to_listener += take(caller, to_caller);
  }
}

TEST(PairProofs, OpenBetweenWorkersOfOneWorldWithTheSameKeys) {
  auto caller = PairProof::caller(world_of(2), 1);
  auto listener = PairProof::listener(world_of(1));
  shake(caller, listener);
  ASSERT_EQ(caller.state(), PairProof::State::kOpen);
  ASSERT_EQ(listener.state(), PairProof::State::kOpen);
  EXPECT_EQ(listener.peer(), 2);
  EXPECT_EQ(caller.keys().to_caller, listener.keys().to_caller);
  EXPECT_EQ(caller.keys().to_listener, listener.keys().to_listener);
  EXPECT_NE(caller.keys().to_listener, caller.keys().to_caller);
}

TEST(PairProofs, DoNotOpenForAnotherSecretWorldOrRank) {
  const PairWorld listening = world_of(1);
  const std::pair<PairWorld, int> callers[] = {{world_of(2, "other"), 1},
                                               {world_of(2, "s", "other"), 1},
                                               {world_of(2), 0},
                                               {world_of(0), 1},
                                               {world_of(7), 1}};
  for (const auto& [world, to] : callers) {
    auto caller = PairProof::caller(world, to);
    auto listener = PairProof::listener(listening);
    shake(caller, listener);
    EXPECT_EQ(listener.state(), PairProof::State::kEnded);
    EXPECT_NE(caller.state(), PairProof::State::kOpen);
  }
}

// A listener that sends the caller's own bytes back proves nothing.
TEST(PairProofs, AMirrorDoesNotOpen) {
  auto caller = PairProof::caller(world_of(2), 1);
  auto listener = PairProof::listener(world_of(1));
  const std::string answer = listener.receive(caller.start());
  const std::string proof = caller.receive(answer);
  ASSERT_EQ(proof.size(), caller.wants());
  caller.receive(proof);
  EXPECT_EQ(caller.ending(), PairProof::Ending::kNoSecret);
}

}  // namespace
}  // namespace lockstep::base
