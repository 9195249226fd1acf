#include "comm/arena/arena_session.h"

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

using State = Session::State;

Party party(int rank, const std::string& secret = "s", const std::string& arena = "gradients") {
  return {secret, "a world", arena, rank, 3};
}

// Lets two sessions talk until neither has anything to say.
void converse(Session& caller, Session& listener) {
  std::string packet = caller.hello();
  for (Session* to = &listener;; to = to == &listener ? &caller : &listener) {
    const auto reply = to->receive(packet);
    if (!reply) return;
    packet = reply->packet;
  }
}

State state_of_listener(const Party& lower, const Party& higher, int called) {
  Session caller = Session::to(higher, called);
  Session listener = Session::from_anyone(lower);
  converse(caller, listener);
  EXPECT_EQ(caller.state() == State::kDone, listener.state() == State::kDone);
  EXPECT_EQ(caller.proven(), listener.proven());
  return listener.state();
}

TEST(ArenaSessionTest, NoDescriptorLeavesBeforeBothSidesAreProven) {
  const Party lower = party(0);
  const Party higher = party(2);
  Session caller = Session::to(higher, 0);
  Session listener = Session::from_anyone(lower);
  const auto challenge = listener.receive(caller.hello());
  ASSERT_TRUE(challenge && !challenge->with_arena);
  EXPECT_EQ(listener.peer(), 2);
  const auto proof = caller.receive(challenge->packet);
  ASSERT_TRUE(proof && !proof->with_arena);
  EXPECT_FALSE(caller.proven() || listener.proven());
  const auto answer = listener.receive(proof->packet);
  ASSERT_TRUE(answer && !answer->with_arena);
  EXPECT_TRUE(listener.proven() && listener.expects_arena());
  const auto first = caller.receive(answer->packet);
  ASSERT_TRUE(first && first->with_arena);
  EXPECT_TRUE(caller.proven() && caller.expects_arena());
  const auto second = listener.receive(first->packet);
  ASSERT_TRUE(second && second->with_arena);
  EXPECT_FALSE(caller.receive(second->packet));
  EXPECT_EQ(caller.state(), State::kDone);
  EXPECT_EQ(listener.state(), State::kDone);
}

TEST(ArenaSessionTest, AnotherSecretWorldOrArenaIsRefused) {
  EXPECT_EQ(state_of_listener(party(0), party(2), 0), State::kDone);
  EXPECT_EQ(state_of_listener(party(0), party(2, "t"), 0), State::kEnded);
  EXPECT_EQ(state_of_listener(party(0), party(2, "s", "weights"), 0), State::kEnded);
  Party elsewhere = party(2);
  elsewhere.world = "another world";
  EXPECT_EQ(state_of_listener(party(0), elsewhere, 0), State::kEnded);
}

TEST(ArenaSessionTest, OnlyAHigherRankThatMeansThisWorkerIsServed) {
  EXPECT_EQ(state_of_listener(party(0), party(2), 1), State::kEnded) << "means rank 1";
  EXPECT_EQ(state_of_listener(party(1), party(0), 1), State::kEnded) << "a lower rank";
  EXPECT_EQ(state_of_listener(party(1), party(1), 1), State::kEnded) << "itself";
  EXPECT_EQ(state_of_listener(party(0), party(3), 0), State::kEnded) << "no such rank";
}

TEST(ArenaSessionTest, AProofIsWorthNothingASecondTimeOrToItsMaker) {
  const Party lower = party(0);
  const Party higher = party(2);
  Session caller = Session::to(higher, 0);
  Session listener = Session::from_anyone(lower);
  const auto proof = caller.receive(listener.receive(caller.hello())->packet);
  Session later = Session::from_anyone(lower);
  later.receive(caller.hello());
  later.receive(proof->packet);
  EXPECT_EQ(later.state(), State::kEnded) << "replayed";
  caller.receive(proof->packet);
  EXPECT_EQ(caller.state(), State::kEnded) << "reflected";
  EXPECT_EQ(caller.why(), "does not know the secret");
}

TEST(ArenaSessionTest, GarbageEndsASessionInEveryState) {
  const Party lower = party(0);
  const Party higher = party(2);
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1"), std::string(64, '\0'), std::string("\4"), std::string()}) {
    Session listener = Session::from_anyone(lower);
    EXPECT_FALSE(listener.receive(garbage));
    EXPECT_EQ(listener.state(), State::kEnded);
    Session caller = Session::to(higher, 0);
    EXPECT_FALSE(caller.receive(garbage));
    EXPECT_EQ(caller.state(), State::kEnded);
    Session greeted = Session::from_anyone(lower);
    greeted.receive(Session::to(higher, 0).hello());
    EXPECT_FALSE(greeted.receive(garbage));
    EXPECT_EQ(greeted.state(), State::kEnded);
  }
}

}  // namespace
}  // namespace lockstep::comm
