#include "comm/arena/offer.h"

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

TEST(OfferTest, SurvivesTheWayThroughTheBootstrap) {
  const ArenaOffer offer{"a host", "a socket", 1 << 20, 4711, "a namespace"};
  EXPECT_EQ(decode_offer(encode(offer)), offer);
}

TEST(OfferTest, WhatIsShortLongOrImpossibleIsNoCard) {
  const std::string good = encode(ArenaOffer{"a host", "a socket", 1 << 20});
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_FALSE(decode_offer(std::string_view(good).substr(0, bytes))) << bytes;
  }
  EXPECT_FALSE(decode_offer(good + "x"));
  EXPECT_FALSE(decode_offer(encode(ArenaOffer{"a host", "", 1})));
  EXPECT_FALSE(decode_offer(encode(ArenaOffer{"a host", std::string(101, 'x'), 1})));
  EXPECT_FALSE(decode_offer(encode(ArenaOffer{"a host", "a socket", 0})));
  EXPECT_FALSE(decode_offer(encode(ArenaOffer{"a host", "a socket", ~std::uint64_t{0}})));
}

TEST(OfferTest, TheIdentityOfThisHostStaysTheSameAndFitsACard) {
  EXPECT_EQ(host_identity(), host_identity());
  const ArenaOffer offer{host_identity(), "a socket", 1};
  EXPECT_EQ(decode_offer(encode(offer)), offer);
}

}  // namespace
}  // namespace lockstep::comm
