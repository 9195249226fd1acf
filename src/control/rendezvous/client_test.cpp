#include "control/rendezvous/client.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <future>
#include <optional>
#include <set>

#include "control/rendezvous/secret.h"
#include "control/rendezvous/server.h"
#include "control/rendezvous/test_support.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

JoinRequest request_of(int rank, int size, milliseconds timeout = seconds(20)) {
  return {rank, size, "0.1.0", "tcp", timeout};
}

// Runs `work` for every rank on a thread of its own and passes on the first exception.
void on_ranks(int size, const std::function<void(int)>& work) {
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::async(std::launch::async, work, rank));
  }
  for (auto& rank : ranks) rank.get();
}

// The what() of the error of kind `Kind` that `work` throws.
template <typename Kind>
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Kind& error) {
    return error.what();
  }
  return "(no error)";
}

class ClientTest : public testing::TestWithParam<Address::Kind> {
 protected:
  void host(int size) {
    secret_ = make_secret();
    Listener listener =
        GetParam() == Address::Kind::kUnix ? listen_unix(fresh_name()) : listen_tcp("lo", 0);
    hosted_.emplace(std::move(listener), ServerOptions{size, secret_});
    address_ = hosted_->address();
  }
  RendezvousClient join(int rank, int size, Deadline deadline = soon()) {
    const auto timeout = std::chrono::round<milliseconds>(deadline.left());
    return {address_, secret_, request_of(rank, size, timeout), deadline};
  }

  std::string secret_;
  Address address_;
  std::optional<HostedRendezvous> hosted_;
};

TEST_P(ClientTest, WorkersMeetExchangeValuesAndPart) {
  host(8);
  std::array<std::string, 8> names;
  std::array<std::string, 8> secrets;
  on_ranks(8, [&](int rank) {
    RendezvousClient client = join(rank, 8);
    names[static_cast<std::size_t>(rank)] = client.name();
    secrets[static_cast<std::size_t>(rank)] = client.secret();
    client.put(fmt::format("address/{}", rank), fmt::format("value {}", rank), soon());
    for (int other = 0; other < 8; ++other) {
      EXPECT_EQ(client.get(fmt::format("address/{}", other), soon()),
                fmt::format("value {}", other));
    }
    client.done(soon());
  });
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), 1u);
  EXPECT_EQ(std::set(secrets.begin(), secrets.end()).size(), 1u);
  EXPECT_NE(secrets[0], secret_);
  hosted_->finish(soon());
}

TEST_P(ClientTest, TheNextMeetingIsAnotherGeneration) {
  host(2);
  std::set<std::string> names;
  for (std::uint64_t generation = 1; generation <= 3; ++generation) {
    on_ranks(2, [&](int rank) {
      RendezvousClient client = join(rank, 2);
      EXPECT_EQ(client.generation(), generation);
      if (rank == 0) names.insert(client.name());
      client.done(soon());
    });
  }
  EXPECT_EQ(names.size(), 3u);
}

TEST_P(ClientTest, LargeValuesArriveWholeAndLargerOnesAreBadInput) {
  host(2);
  on_ranks(2, [&](int rank) {
    RendezvousClient client = join(rank, 2);
    const std::string value(kMostValueBytes, 'v');
    if (rank == 0) {
      client.put("large", value, soon());
      EXPECT_THROW(client.put("larger", value + "v", soon()), BadInput);
      EXPECT_THROW(client.put("", "value", soon()), BadInput);
    }
    EXPECT_EQ(client.get("large", soon()), value);
    client.done(soon());
  });
}

TEST_P(ClientTest, MissingWorkersEndInATimeoutThatNamesThem) {
  host(4);
  on_ranks(2, [&](int rank) {
    const std::string message =
        error_of<Timeout>([&] { join(rank, 4, Deadline::after(seconds(1))); });
    EXPECT_THAT(message, HasSubstr("ranks 2 and 3 of 4 have not joined after 1 s"));
  });
}

TEST_P(ClientTest, AWorkerThatLeavesEndsTheOthersWaitsAtOnce) {
  host(3);
  std::promise<void> waiting;
  on_ranks(3, [&](int rank) {
    RendezvousClient client = join(rank, 3);
    if (rank == 2) return;
    const auto start = std::chrono::steady_clock::now();
    const std::string message = error_of<PeerLost>([&] { client.get("never", soon()); });
    EXPECT_THAT(message, HasSubstr("rank 2"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
  });
}

TEST_P(ClientTest, AWorkerThatGivesUpIsQuotedToTheOthers) {
  host(2);
  on_ranks(2, [&](int rank) {
    RendezvousClient client = join(rank, 2);
    if (rank == 0) return client.give_up("no route to host");
    EXPECT_THAT(error_of<PeerLost>([&] { client.done(soon()); }), HasSubstr("no route to host"));
  });
}

TEST_P(ClientTest, AfterATimeoutTheConnectionIsStillGood) {
  host(2);
  on_ranks(2, [&](int rank) {
    RendezvousClient client = join(rank, 2);
    if (rank == 0) {
      EXPECT_THROW(client.get("never", Deadline::after(milliseconds(30))), Timeout);
      EXPECT_THROW(client.get("never", Deadline::after(milliseconds(0))), Timeout);
      client.put("key", "value", soon());
    }
    EXPECT_EQ(client.get("key", soon()), "value");
    client.done(soon());
  });
}

TEST_P(ClientTest, AnotherSecretIsBadInputAtOnce) {
  host(2);
  const std::string message = error_of<BadInput>(
      [&] { RendezvousClient(address_, make_secret(), request_of(0, 2), soon()); });
  EXPECT_THAT(message, HasSubstr("has another secret"));
  EXPECT_THAT(message, HasSubstr("LOCKSTEP_SECRET_FILE"));
}

TEST_P(ClientTest, WorkersThatComeBeforeTheRendezvousWaitForIt) {
  host(2);
  hosted_.reset();
  auto early = std::async(std::launch::async, [&] { join(1, 2).done(soon()); });
  Listener listener = GetParam() == Address::Kind::kUnix ? listen_unix(address_.host)
                                                         : listen_tcp(address_.host, address_.port);
  hosted_.emplace(std::move(listener), ServerOptions{2, secret_});
  join(0, 2).done(soon());
  early.get();
}

TEST_P(ClientTest, WhoKnocksAtAClosingRendezvousFindsTheNextOne) {
  host(2);
  auto early = std::async(std::launch::async, [&] { join(1, 2).done(soon()); });
  // Whether it has joined by now or not (mostly not: roster_test.cpp has that case), it ends up at
  // the second one.
  hosted_->finish(soon());
  Listener listener = GetParam() == Address::Kind::kUnix ? listen_unix(address_.host)
                                                         : listen_tcp(address_.host, address_.port);
  hosted_.emplace(std::move(listener), ServerOptions{2, secret_});
  join(0, 2).done(soon());
  early.get();
}

TEST_P(ClientTest, ARendezvousThatDiesIsAPeerLost) {
  host(2);
  std::promise<void> joined;
  std::promise<void> gone;
  auto first = std::async(std::launch::async, [&] {
    RendezvousClient client = join(0, 2);
    joined.set_value();
    gone.get_future().wait();
    EXPECT_THAT(error_of<PeerLost>([&] { client.get("key", soon()); }), HasSubstr("went away"));
    EXPECT_THROW(client.put("key", "value", soon()), PeerLost);
  });
  RendezvousClient second = join(1, 2);
  joined.get_future().wait();
  hosted_.reset();
  gone.set_value();
  first.get();
}

TEST_P(ClientTest, NobodyThereEndsInATimeoutThatSaysWhere) {
  host(2);
  hosted_.reset();
  const std::string message =
      error_of<Timeout>([&] { join(1, 2, Deadline::after(milliseconds(100))); });
  EXPECT_THAT(message, HasSubstr(to_string(address_)));
  EXPECT_THAT(message, HasSubstr("nobody listens there"));
}

INSTANTIATE_TEST_SUITE_P(Sockets, ClientTest,
                         testing::Values(Address::Kind::kUnix, Address::Kind::kTcp),
                         [](const auto& socket) {
                           return socket.param == Address::Kind::kUnix ? "Unix" : "Tcp";
                         });

TEST(HostedRendezvousTest, ATcpRendezvousWithoutASecretIsRefused) {
  EXPECT_THROW(HostedRendezvous(listen_tcp("lo", 0), ServerOptions{2, ""}), BadInput);
}

TEST(HostedRendezvousTest, OnAUnixSocketTheKernelsWordForTheUserIsEnough) {
  HostedRendezvous hosted(listen_unix(fresh_name()), ServerOptions{2, ""});
  std::array<std::string, 2> secrets;
  on_ranks(2, [&](int rank) {
    RendezvousClient client(hosted.address(), "", request_of(rank, 2), soon());
    secrets[static_cast<std::size_t>(rank)] = client.secret();
    client.done(soon());
  });
  EXPECT_EQ(secrets[0], secrets[1]);
  EXPECT_EQ(secrets[0].size(), 32u);
}

}  // namespace
}  // namespace lockstep::control
