// What strangers do to a rendezvous, with real sockets: each is dropped and counted, and the
// workers meet all the same.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <future>

#include "base/hash.h"
#include "control/rendezvous/client.h"
#include "control/rendezvous/door.h"
#include "control/rendezvous/secret.h"
#include "control/rendezvous/server.h"
#include "control/rendezvous/sockets.h"
#include "control/rendezvous/test_support.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uid_t kNobody = 65534;

// A server that runs on the test's own thread while the test waits for something.
class StrangersTest : public testing::TestWithParam<Address::Kind> {
 protected:
  void serve(ServerOptions options = {}) {
    options.secret = secret_;
    Listener listener =
        GetParam() == Address::Kind::kUnix ? listen_unix(fresh_name()) : listen_tcp("lo", 0);
    address_ = listener.address;
    server_.emplace(context_, std::move(listener), std::move(options));
  }

  bool run_until(const std::function<bool()>& happened) {
    const Deadline deadline = soon();
    while (!happened() && !deadline.expired()) {
      context_.restart();
      context_.run_one_for(milliseconds(2));
    }
    return happened();
  }

  base::Fd connect() {
    std::string problem;
    base::Fd fd = try_connect(address_, soon(), problem);
    EXPECT_TRUE(fd) << problem;
    return fd;
  }

  // The server has closed the connection.
  bool run_until_closed(const base::Fd& fd) {
    return run_until([&] {
      char chunk[4096];
      const ssize_t got = ::recv(fd.get(), chunk, sizeof chunk, MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno != EAGAIN);
    });
  }

  JoinRequest request() const { return {0, 1, "0.1.0", "tcp", seconds(20)}; }

  void expect_workers_still_meet() {
    auto worker = std::async(std::launch::async, [this] {
      RendezvousClient client(address_, secret_, request(), soon());
      client.put("key", "value", soon());
      EXPECT_EQ(client.get("key", soon()), "value");
      client.done(soon());
    });
    run_until([&] { return worker.wait_for(seconds(0)) == std::future_status::ready; });
    worker.get();
  }

  // A worker that joins a world of one, by hand.
  Session worker_session() const {
    Session session(Handshake(Role::kWorker, secret_));
    session.send(Join{1, 0, 1, 1000, 1000, "0.1.0", "tcp", "node", 1});
    return session;
  }

  // Passes bytes to and fro once, keeping what was sent.
  static void exchange(const base::Fd& fd, Session& session, std::string& sent) {
    const std::string output = session.take_output();
    sent += output;
    base::write_all(fd.get(), output, soon());
    char chunk[4096];
    const ssize_t got = ::recv(fd.get(), chunk, sizeof chunk, MSG_DONTWAIT);
    if (got > 0) session.receive(std::string_view(chunk, static_cast<std::size_t>(got)));
  }

  // Does so until the wanted kind of message arrives.
  template <typename Wanted>
  bool talk_until(const base::Fd& fd, Session& session, std::string& sent) {
    bool arrived = false;
    return run_until([&] {
      exchange(fd, session, sent);
      while (const auto message = session.next())
        arrived |= std::holds_alternative<Wanted>(*message);
      return arrived;
    });
  }

  // Runs `work` in another process while the server runs; its exit status.
  int run_with_process(const std::function<int()>& work) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(work());
    int status = -1;
    run_until([&] { return ::waitpid(pid, &status, WNOHANG) == pid; });
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string secret_ = make_secret();
  boost::asio::io_context context_{1};
  Address address_;
  std::optional<RendezvousServer> server_;
};

// Users are known on Unix sockets only.
class UnixStrangersTest : public StrangersTest {};

TEST_P(StrangersTest, GarbageIsDropped) {
  serve();
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\nHost: somewhere.example\r\nAccept: */*\r\n\r\n"),
        std::string(1000, '\0'), base::random_bytes(65536)}) {
    const base::Fd fd = connect();
    base::write_all(fd.get(), garbage, Deadline::after(milliseconds(50)));
    EXPECT_TRUE(run_until_closed(fd));
  }
  EXPECT_TRUE(run_until([&] { return server_->strangers() == 3; }));
  EXPECT_TRUE(run_until([&] { return server_->connections() == 0; }));
  expect_workers_still_meet();
}

TEST_P(StrangersTest, OneThatStallsIsDroppedAfterItsTime) {
  serve({.time_to_prove = milliseconds(50)});
  const base::Fd silent = connect();
  const base::Fd halfway = connect();
  base::write_all(halfway.get(), encode(Hello{1, std::string(kNonceBytes, 'n')}).substr(0, 20),
                  soon());
  EXPECT_TRUE(run_until_closed(silent));
  EXPECT_TRUE(run_until_closed(halfway));
  EXPECT_TRUE(run_until([&] { return server_->strangers() == 2; }));
  expect_workers_still_meet();
}

TEST_P(StrangersTest, AKnownSecretDoesNotExcuseStallingBeforeJoining) {
  serve({.time_to_prove = milliseconds(50)});
  const base::Fd fd = connect();
  Session session(Handshake(Role::kWorker, secret_));
  std::string sent;
  EXPECT_TRUE(run_until([&] {
    exchange(fd, session, sent);
    return session.open();
  }));
  EXPECT_TRUE(run_until_closed(fd));
  EXPECT_TRUE(run_until([&] { return server_->connections() == 0; }));
}

TEST_P(StrangersTest, ARecordedSessionCannotBePlayedAgain) {
  serve();
  std::string recorded;
  {
    const base::Fd fd = connect();
    Session session = worker_session();
    session.send(Put{2, "key", "value"});
    ASSERT_TRUE(talk_until<Stored>(fd, session, recorded));
  }
  EXPECT_TRUE(run_until([&] { return server_->connections() == 0; }));
  EXPECT_EQ(server_->strangers(), 0u);
  const base::Fd replay = connect();
  base::write_all(replay.get(), recorded, soon());
  EXPECT_TRUE(run_until_closed(replay));
  EXPECT_TRUE(run_until([&] { return server_->strangers() == 1; }));
  expect_workers_still_meet();
}

TEST_P(StrangersTest, AWorkersConnectionThatIsTakenOverIsDroppedAndCounted) {
  serve();
  const base::Fd fd = connect();
  Session session = worker_session();
  std::string recorded;
  ASSERT_TRUE(talk_until<Welcome>(fd, session, recorded));
  EXPECT_EQ(server_->strangers(), 0u);
  base::write_all(fd.get(), FrameSealer("no key", Direction::kToServer).seal("poison"), soon());
  EXPECT_TRUE(run_until_closed(fd));
  EXPECT_TRUE(run_until([&] { return server_->strangers() == 1; }));
  expect_workers_still_meet();
}

TEST_P(StrangersTest, AThousandConnectionsDoNotKeepAWorkerOut) {
  serve({.most_unproven = 32});
  const int status = run_with_process([this] {
    std::vector<base::Fd> crowd;
    for (int i = 0; i < 1000; ++i) {
      std::string problem;
      crowd.push_back(try_connect(address_, soon(), problem));
      if (!crowd.back()) --i;  // the queue is full until the server takes some in
    }
    RendezvousClient client(address_, secret_, request(), soon());
    client.done(soon());
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(run_until([&] { return server_->strangers() == 1000; }));
  EXPECT_TRUE(run_until([&] { return server_->connections() == 0; }));
}

TEST_P(StrangersTest, RunningOutOfDescriptorsDoesNotKeepAWorkerOut) {
  serve();
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const base::Fd next(::fcntl(0, F_DUPFD_CLOEXEC, 0));
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(next.get()) + 16;
  ::setrlimit(RLIMIT_NOFILE, &tight);
  const int status = run_with_process([&] {
    ::setrlimit(RLIMIT_NOFILE, &before);
    std::vector<base::Fd> crowd;
    for (int i = 0; i < 100; ++i) {
      std::string problem;
      crowd.push_back(try_connect(address_, soon(), problem));
    }
    RendezvousClient client(address_, secret_, request(), soon());
    client.done(soon());
    return 0;
  });
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(status, 0);
}

TEST_P(UnixStrangersTest, AnotherUserCannotEvenKnock) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  serve();
  const int status = run_with_process([this] {
    if (::setresuid(kNobody, kNobody, kNobody) != 0) return 1;
    base::Fd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    std::string problem;
    if (try_connect(address_, soon(), problem)) return 2;
    return problem.find("user 0") != std::string::npos ? 0 : 3;
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(run_until([&] { return server_->strangers() == 1; }));
  expect_workers_still_meet();
}

TEST_P(UnixStrangersTest, ANameTakenByAnotherUserIsNotTrusted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string name = fresh_name();
  base::Pipe ready = base::make_pipe();
  base::Pipe over = base::make_pipe();
  const pid_t squatter = ::fork();
  if (squatter == 0) {
    if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(1);
    const Listener listener = listen_unix(name);
    over.write.reset();
    base::write_all(ready.write.get(), "x", soon());
    base::read_exactly(over.read.get(), 1, soon());
    ::_exit(0);
  }
  ASSERT_EQ(base::read_exactly(ready.read.get(), 1, soon()), "x");
  try {
    RendezvousClient client({Address::Kind::kUnix, name, 0}, secret_, request(),
                            Deadline::after(milliseconds(100)));
    ADD_FAILURE() << "joined a stranger's rendezvous";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("user 65534"));
  }
  over.write.reset();
  ::waitpid(squatter, nullptr, 0);
}

TEST_P(StrangersTest, AnImpostorsRendezvousIsFoundOut) {
  const Listener impostor =
      GetParam() == Address::Kind::kUnix ? listen_unix(fresh_name()) : listen_tcp("lo", 0);
  auto worker = std::async(std::launch::async, [&] {
    RendezvousClient client(impostor.address, secret_, request(), soon());
  });
  ASSERT_TRUE(base::wait_ready(impostor.fd.get(), POLLIN, soon()));
  const base::Fd fd(::accept4(impostor.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  base::read_exactly(fd.get(), kHelloBytes, soon());
  base::write_all(fd.get(), encode(Challenge{kProtocolVersion, base::random_bytes(kNonceBytes)}),
                  soon());
  base::read_exactly(fd.get(), kProofMessageBytes, soon());
  base::write_all(fd.get(), encode(Proof{base::random_bytes(kProofBytes)}), soon());
  EXPECT_THROW(worker.get(), BadInput);
}

TEST_P(StrangersTest, TheLogNamesTheStrangerAndNeverTheSecret) {
  serve();
  testing::internal::CaptureStderr();
  for (int i = 0; i < 20; ++i) {
    const base::Fd fd = connect();
    base::write_all(fd.get(), std::string(100, 'x'), soon());
    run_until_closed(fd);
  }
  run_until([&] { return server_->strangers() == 20; });
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("dropped a connection of"));
  EXPECT_THAT(log, testing::Not(testing::HasSubstr(secret_)));
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 5);
}

INSTANTIATE_TEST_SUITE_P(Sockets, StrangersTest,
                         testing::Values(Address::Kind::kUnix, Address::Kind::kTcp),
                         [](const auto& socket) {
                           return socket.param == Address::Kind::kUnix ? "Unix" : "Tcp";
                         });
INSTANTIATE_TEST_SUITE_P(Sockets, UnixStrangersTest, testing::Values(Address::Kind::kUnix),
                         [](const auto&) { return "Unix"; });

TEST(LogLimiterTest, AFloodIsCountedNotLogged) {
  LogLimiter limiter(2, std::chrono::seconds(10));
  const LogLimiter::TimePoint start{std::chrono::seconds(100)};
  EXPECT_EQ(limiter.pass(start), 0u);
  EXPECT_EQ(limiter.pass(start), 0u);
  for (int i = 0; i < 1000; ++i)
    EXPECT_EQ(limiter.pass(start + std::chrono::seconds(9)), std::nullopt);
  EXPECT_EQ(limiter.pass(start + std::chrono::seconds(10)), 1000u);
  EXPECT_EQ(limiter.pass(start + std::chrono::seconds(10)), 0u);
}

}  // namespace
}  // namespace lockstep::control
