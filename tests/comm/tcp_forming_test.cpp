// Forming a world over TCP while others disturb it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "base/fd.h"
#include "base/files.h"
#include "tests/support/elements.h"
#include "tests/support/refused_thread.h"
#include "tests/support/strangers.h"
#include "tests/support/workers.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// As the table of connections names them. Other processes' are not for us to disturb.
std::set<std::string> own_sockets() {
  std::set<std::string> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string target = base::link_target(entry.path());
    if (target.rfind("socket:[", 0) == 0) numbers.insert(target.substr(8, target.size() - 9));
  }
  return numbers;
}

// The ports of the loopback on which this process listens now.
std::set<int> listening_ports() {
  const std::set<std::string> own = own_sockets();
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::set<int> ports;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
    constexpr std::size_t kLocal = 1, kState = 3, kSocket = 9;
    if (words.size() <= kSocket || words[kState] != "0A" || !own.contains(words[kSocket])) continue;
    if (words[kLocal].rfind("0100007F:", 0) != 0) continue;
    ports.insert(std::stoi(words[kLocal].substr(9), nullptr, 16));
  }
  return ports;
}

struct Trouble {
  std::string secret_of_last = "s";
  bool refuses_thread_of_rank_0 = false;
};

// Every worker reduces once, and says how that ended.
std::vector<Outcome> form(int size, milliseconds timeout, const Trouble& trouble = {}) {
  const auto store = std::make_shared<LocalStore>();
  std::vector<Outcome> outcomes(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        LocalBootstrap bootstrap(store, "forming", rank, size);
        bootstrap.set_secret(rank + 1 == size ? trouble.secret_of_last : "s");
        CommOptions options;
        options.timeout = timeout;
        std::optional<RefusedThread> refused;
        if (rank == 0 && trouble.refuses_thread_of_rank_0) refused.emplace(0);
        Comm comm = connect("tcp", bootstrap, options);
        std::vector<std::int32_t> data{1};
        comm.all_reduce(buffer_of(data)).wait();
        EXPECT_EQ(data[0], size);
      } catch (const Error& error) {
        outcomes[rank] = {error.kind(), error.ranks(), error.what()};
      } catch (const std::system_error& error) {
        outcomes[rank] = {ErrorKind::kUnavailable, {rank}, error.what()};
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

class Strangers : public ::testing::TestWithParam<Manner> {};

// The strangers come again and again while the world forms, and more of them than may be there at a
// time.
TEST_P(Strangers, NeitherGetInNorHoldTheWorldUp) {
  const std::set<int> before = listening_ports();
  for (int round = 0; round < 8; ++round) {
    std::atomic<bool> formed{false};
    std::vector<base::Fd> strangers;
    std::thread disturber([&] {
      while (!formed) {
        for (const int port : listening_ports()) {
          if (before.contains(port) || strangers.size() > 200) continue;
          strangers.push_back(connect_as_stranger("127.0.0.1", port));
          behave(strangers.back(), GetParam());
        }
      }
    });
    const auto begun = Deadline::Clock::now();
    const auto outcomes = form(3, milliseconds(20'000));
    formed = true;
    disturber.join();
    for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.kind) << outcome.text;
    EXPECT_LT(Deadline::Clock::now() - begun, milliseconds(10'000));
  }
  EXPECT_EQ(listening_ports(), before) << "nobody listens after a world has formed";
}

std::string name_of(const ::testing::TestParamInfo<Manner>& manner) {
  return name(manner.param);
}

INSTANTIATE_TEST_SUITE_P(Manner, Strangers, ::testing::ValuesIn(kManners), name_of);

// It is told at once; for the others it is a stranger, and a worker is missing.
TEST(TcpForming, AWorkerWithAnotherSecretIsKeptOut) {
  const auto outcomes = form(3, milliseconds(4'000), {.secret_of_last = "wrong"});
  EXPECT_EQ(outcomes[2].kind, ErrorKind::kPeerLost) << outcomes[2].text;
  EXPECT_THAT(outcomes[2].text, HasSubstr("secret"));
  EXPECT_TRUE(outcomes[0].kind);
  EXPECT_TRUE(outcomes[1].kind);
}

TEST(TcpForming, AThreadThatCannotStartEndsTheWorldForAll) {
  const auto outcomes = form(3, milliseconds(20'000), {.refuses_thread_of_rank_0 = true});
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kUnavailable) << outcomes[0].text;
  for (const int rank : {1, 2}) {
    EXPECT_TRUE(outcomes[rank].kind);
    EXPECT_EQ(outcomes[rank].ranks, std::vector<int>{0}) << outcomes[rank].text;
  }
}

TEST(TcpForming, AWorldThatNeverCompletesEndsAtItsDeadline) {
  const auto store = std::make_shared<LocalStore>();
  LocalBootstrap bootstrap(store, "incomplete", 0, 2);
  CommOptions options;
  options.timeout = milliseconds(300);
  EXPECT_THROW(connect("tcp", bootstrap, options), Timeout);
}

TEST(TcpForming, AnInterfaceThatDoesNotExistIsBadInput) {
  LocalBootstrap bootstrap(std::make_shared<LocalStore>(), "nowhere", 0, 2);
  CommOptions options;
  options.timeout = milliseconds(300);
  options.interface_name = "no-such-interface0";
  EXPECT_THROW(connect("tcp", bootstrap, options), BadInput);
}

std::vector<std::string> addresses() {
  std::vector<std::string> all{"lo", "127.0.0.1", "localhost"};
  if (base::Fd six(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)); six) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    if (::bind(six.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
      all.emplace_back("::1");
  }
  return all;
}

TEST(TcpForming, AnInterfaceAnAddressOrANameIsListenedOn) {
  for (const std::string& where : addresses()) {
    SCOPED_TRACE(where);
    const auto store = std::make_shared<LocalStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        LocalBootstrap bootstrap(store, where, rank, 2);
        CommOptions options;
        options.timeout = milliseconds(20'000);
        options.interface_name = where;
        std::vector<std::int32_t> data{1};
        Comm comm = connect("tcp", bootstrap, options);
        comm.all_reduce(buffer_of(data)).wait();
        EXPECT_EQ(data[0], 2);
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace lockstep::testing
