#include "control/rendezvous/sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>

namespace lockstep::control {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& host, std::uint16_t port) {
  try {
    listen_tcp(host, port);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "accepted";
}

bool reachable(const Address& address) {
  std::string problem;
  return static_cast<bool>(try_connect(address, Deadline::after(std::chrono::seconds(5)), problem));
}

TEST(ListenerTest, AnInterfaceIsListenedOnByNameOrByAddress) {
  std::vector<const char*> places = {"lo", "127.0.0.1"};
  addrinfo* found = nullptr;
  if (::getaddrinfo("localhost", nullptr, nullptr, &found) ==
      0) {  // not in a root without /etc/hosts
    places.push_back("localhost");
    ::freeaddrinfo(found);
  }
  for (const char* where : places) {
    const Listener listener = listen_tcp(where, 0);
    EXPECT_GT(listener.address.port, 0);
    EXPECT_TRUE(reachable(listener.address)) << where;
  }
  EXPECT_EQ(listen_tcp("lo", 0).address.host, "127.0.0.1");
}

TEST(ListenerTest, ATakenPortIsBadInputThatSaysSo) {
  const Listener first = listen_tcp("lo", 0);
  EXPECT_THAT(refusal("lo", first.address.port), HasSubstr("choose another port"));
}

TEST(ListenerTest, ARandomPortIsNotOneThatIsTaken) {
  const Listener taken = listen_tcp("127.0.0.1", 0);
  const int port = taken.address.port;
  for (int i = 0; i < 100; ++i)
    EXPECT_NE(random_port(std::max(port - 30, 1024), std::min(port + 30, 65535)), port);
}

TEST(ListenerTest, EveryInterfaceAtOnceIsRefused) {
  EXPECT_THAT(refusal("0.0.0.0", 0), HasSubstr("name one (this host has"));
  EXPECT_THAT(refusal("::", 0), HasSubstr("every interface"));
}

TEST(ListenerTest, AnUnknownInterfaceOrAForeignAddressNamesWhatThereIs) {
  EXPECT_THAT(refusal("nosuchif0", 0), HasSubstr("lo 127.0.0.1"));
  EXPECT_THAT(refusal("192.0.2.1", 0), HasSubstr("name an interface or address"));
}

TEST(ListenerTest, AnAbstractNameIsTakenOnceAndFreeWhenClosed) {
  const std::string name = "lockstep-test-" + std::to_string(::getpid());
  {
    const Listener first = listen_unix(name);
    EXPECT_TRUE(reachable(first.address));
    EXPECT_THROW(listen_unix(name), BadInput);
  }
  EXPECT_FALSE(reachable({Address::Kind::kUnix, name, 0}));
  listen_unix(name);
  EXPECT_THROW(listen_unix(""), BadInput);
  EXPECT_THROW(listen_unix(std::string(200, 'x')), BadInput);
}

}  // namespace
}  // namespace lockstep::control
