#include "control/rendezvous/address.h"

#include <gtest/gtest.h>
#include <lockstep/errors.h>

namespace lockstep::control {
namespace {

TEST(AddressTest, ReadsEveryForm) {
  EXPECT_EQ(parse_address("unix:lockstep-1"), (Address{Address::Kind::kUnix, "lockstep-1", 0}));
  EXPECT_EQ(parse_address("tcp:node7:29400"), (Address{Address::Kind::kTcp, "node7", 29400}));
  EXPECT_EQ(parse_address("node7:29400"), (Address{Address::Kind::kTcp, "node7", 29400}));
  EXPECT_EQ(parse_address("[fe80::1]:1"), (Address{Address::Kind::kTcp, "fe80::1", 1}));
  EXPECT_EQ(parse_address("tcp:[::1]:65535"), (Address{Address::Kind::kTcp, "::1", 65535}));
}

TEST(AddressTest, WhatWasWrittenIsReadBack) {
  for (const char* text : {"unix:a", "tcp:10.0.0.1:80", "tcp:[::1]:5000", "tcp:node:1"}) {
    EXPECT_EQ(to_string(parse_address(text)), text);
  }
}

TEST(AddressTest, EverythingElseIsBadInputThatShowsAnAddress) {
  const std::string long_name = "unix:" + std::string(101, 'x');
  for (const std::string& text :
       {std::string(), std::string("node7"), std::string("node7:"), std::string("node7:0"),
        std::string("node7:65536"), std::string("node7:80x"), std::string(":80"),
        std::string("unix:"), std::string("::1:80"), std::string("[]:80"), std::string("[::1]80"),
        std::string("[[::1]]:80"), std::string("a b:80"), std::string("a\n:80"), long_name}) {
    try {
      parse_address(text);
      ADD_FAILURE() << "accepted " << text;
    } catch (const BadInput& error) {
      EXPECT_NE(std::string(error.what()).find("tcp:HOST:PORT"), std::string::npos) << error.what();
    }
  }
}

TEST(AddressTest, MessagesAreShortAndNameTheRemedy) {
  const std::pair<std::string, const char*> cases[] = {
      {"::1", "needs brackets and a port: write [::1]:PORT"},
      {"tcp:fe80::7", "write [fe80::7]:PORT"},
      {"[::1]", "has no port"},
      {std::string(10'000, 'x'), "has no port"},
      {std::string(10'000, 'x') + ":80", "has a host of more than 253 bytes"}};
  for (const auto& [text, remedy] : cases) {
    try {
      parse_address(text);
      ADD_FAILURE() << "accepted " << text;
    } catch (const BadInput& error) {
      EXPECT_NE(std::string(error.what()).find(remedy), std::string::npos) << error.what();
      EXPECT_LT(std::string(error.what()).size(), 250U);
    }
  }
}

TEST(AddressTest, UnprintableBytesAreNotEchoed) {
  try {
    parse_address("\x1b[31m:80");
    FAIL();
  } catch (const BadInput& error) {
    EXPECT_EQ(std::string(error.what()).find('\x1b'), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::control
