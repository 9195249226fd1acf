#include "comm/arena/card.h"

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

TEST(CardTest, SurvivesTheWayThroughTheBootstrap) {
  const Card card{"a host", "a socket", 1 << 20, 4711, "a namespace"};
  EXPECT_EQ(decode_card(encode(card)), card);
}

TEST(CardTest, WhatIsShortLongOrImpossibleIsNoCard) {
  const std::string good = encode(Card{"a host", "a socket", 1 << 20});
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_FALSE(decode_card(std::string_view(good).substr(0, bytes))) << bytes;
  }
  EXPECT_FALSE(decode_card(good + "x"));
  EXPECT_FALSE(decode_card(encode(Card{"a host", "", 1})));
  EXPECT_FALSE(decode_card(encode(Card{"a host", std::string(101, 'x'), 1})));
  EXPECT_FALSE(decode_card(encode(Card{"a host", "a socket", 0})));
  EXPECT_FALSE(decode_card(encode(Card{"a host", "a socket", ~std::uint64_t{0}})));
}

TEST(CardTest, TheIdentityOfThisHostStaysTheSameAndFitsACard) {
  EXPECT_EQ(host_identity(), host_identity());
  const Card card{host_identity(), "a socket", 1};
  EXPECT_EQ(decode_card(encode(card)), card);
}

}  // namespace
}  // namespace lockstep::comm
