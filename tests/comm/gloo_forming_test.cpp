// Forming a world over Gloo while others disturb it.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

#include "base/fd.h"
#include "base/files.h"
#include "tests/support/elements.h"
#include "tests/support/refused_thread.h"
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

base::Fd connect_to(int port) {
  base::Fd stranger(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  ::connect(stranger.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  return stranger;
}

// Rank 0 cannot start the thread that comes after so many others.
constexpr int kAllThreads = -1;

std::vector<Outcome> form(const std::vector<std::string>& secrets, milliseconds timeout,
                          int threads_of_rank_0 = kAllThreads) {
  const auto store = std::make_shared<LocalStore>();
  const int size = static_cast<int>(secrets.size());
  std::vector<Outcome> outcomes(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        LocalBootstrap bootstrap(store, "forming", rank, size);
        bootstrap.set_secret(secrets[rank]);
        CommOptions options;
        options.timeout = timeout;
        std::optional<RefusedThread> refused;
        if (rank == 0 && threads_of_rank_0 != kAllThreads) refused.emplace(threads_of_rank_0);
        Comm comm = connect("gloo", bootstrap, options);
        EXPECT_TRUE(!refused || refused->happened());
        std::vector<std::int32_t> data{1};
        comm.all_reduce(buffer_of(data)).wait();
        EXPECT_EQ(data[0], size);
      } catch (const Error& error) {
        outcomes[rank] = {error.kind(), error.ranks(), error.what()};
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

TEST(GlooForming, AStrangerThatConnectsFirstDelaysTheWorldAndDoesNotGetIn) {
  const std::set<int> before = listening_ports();
  std::atomic<bool> formed{false};
  std::vector<base::Fd> strangers;
  std::thread disturber([&] {
    // One disturbed attempt: a connection to every port that the workers have opened so far.
    while (!formed && strangers.size() < 4) {
      for (const int port : listening_ports()) {
        if (!before.contains(port)) strangers.push_back(connect_to(port));
      }
    }
  });
  const auto outcomes = form({"s", "s", "s"}, milliseconds(60'000));
  formed = true;
  disturber.join();
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.kind) << outcome.text;
}

TEST(GlooForming, AWorkerWithAnotherSecretIsKeptOut) {
  const auto outcomes = form({"right", "right", "wrong"}, milliseconds(30'000));
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kPeerLost) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("does not know the secret"));
  }
}

// Gloo's own is the first; then come the watchdog's, and one for each peer.
TEST(GlooForming, AThreadThatCannotStartSpoilsAnAttemptAndNoMore) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "Gloo is not instrumented: the thread sanitizer does not see how it ends an "
                  "attempt's transfers";
#endif
  for (const int threads : {1, 2, 3}) {
    SCOPED_TRACE(threads);
    const auto outcomes = form({"s", "s", "s"}, milliseconds(60'000), threads);
    for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.kind) << outcome.text;
  }
}

TEST(GlooForming, AWorldThatNeverCompletesEndsAtItsDeadline) {
  const auto store = std::make_shared<LocalStore>();
  LocalBootstrap bootstrap(store, "incomplete", 0, 2);
  CommOptions options;
  options.timeout = milliseconds(300);
  EXPECT_THROW(connect("gloo", bootstrap, options), Timeout);
}

TEST(GlooForming, AnInterfaceThatDoesNotExistIsBadInput) {
  const auto store = std::make_shared<LocalStore>();
  LocalBootstrap bootstrap(store, "nowhere", 0, 2);
  CommOptions options;
  options.timeout = milliseconds(300);
  options.interface_name = "no-such-interface0";
  EXPECT_THROW(connect("gloo", bootstrap, options), BadInput);
}

TEST(GlooNative, SumsOverTheWholeWorldAndSaysWhereItCannot) {
  run_all({"gloo", 3, milliseconds(20'000)}, [](Comm& comm) {
    std::vector<std::int64_t> whole(5000, comm.rank() + 1);
    comm.all_reduce(buffer_of(whole), {.algorithm = Algorithm::kNative}).wait();
    EXPECT_EQ(whole, std::vector<std::int64_t>(5000, 6));
    std::vector<Float16> half(100, Float16(0.5F));
    comm.all_reduce(buffer_of(half), {.algorithm = Algorithm::kNative}).wait();
    EXPECT_EQ(static_cast<float>(half[99]), 1.5F);
    comm.barrier().wait();
  });
}

}  // namespace
}  // namespace lockstep::testing
