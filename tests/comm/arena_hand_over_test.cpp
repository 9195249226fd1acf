// Workers of a host hand their arenas to each other: as threads, as processes, among strangers, with
// peers that lie, stall and die.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/arena.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <list>
#include <random>
#include <thread>

#include "base/fd.h"
#include "comm/arena/arena_session.h"
#include "comm/arena/hand_over.h"
#include "comm/arena/local_socket.h"
#include "comm/arena/offer.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/workers.h"

namespace lockstep::testing {
namespace {

using comm::Session;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kSecret = "a secret of the tests";  // the bootstraps' own
constexpr const char* kWorld = "a world";

const std::size_t kPage = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

Deadline soon() {
  return Deadline::after(seconds(20));
}

void insist(bool holds, const std::string& what) {
  if (!holds) throw Mismatch(what);
}

// Every worker writes its mark into everybody's arena, and finds everybody's in its own.
void share_and_check(Bootstrap& bootstrap, const std::string& name, Deadline deadline) {
  const int self = bootstrap.rank();
  const Arena mine = Arena::create((self + 1) * kPage);
  const auto arenas = share_arenas(mine, name, bootstrap, deadline);
  insist(static_cast<int>(arenas.size()) == bootstrap.size(), "one arena for each");
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    insist(arenas[rank].has_value(), fmt::format("no arena of rank {}", rank));
    insist(arenas[rank]->size() == (rank + 1) * kPage, "the size of its maker");
    arenas[rank]->data()[self] = static_cast<std::byte>(self + 1);
  }
  bootstrap.put(fmt::format("{} written {}", name, self), "", deadline);
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    bootstrap.get(fmt::format("{} written {}", name, rank), deadline);
    insist(mine.data()[rank] == static_cast<std::byte>(rank + 1),
           fmt::format("what rank {} wrote is not here", rank));
  }
}

auto open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

using Sharing = std::function<void(Bootstrap&)>;

// A worker as a thread.
class Worker {
 public:
  Worker(const std::shared_ptr<LocalStore>& store, int rank, int size, Sharing body,
         const std::string& secret = kSecret)
      : thread_([=, this] {
          LocalBootstrap bootstrap(store, kWorld, rank, size);
          bootstrap.set_secret(secret);
          try {
            body(bootstrap);
          } catch (const Error& error) {
            outcome_ = {error.kind(), error.ranks(), error.what()};
          }
        }) {}
  ~Worker() { end(); }

  const Outcome& end() {
    if (thread_.joinable()) thread_.join();
    return outcome_;
  }

 private:
  Outcome outcome_;
  std::thread thread_;
};

Sharing share_by(milliseconds patience) {
  return [patience](Bootstrap& bootstrap) {
    share_and_check(bootstrap, "x", Deadline::after(patience));
  };
}

comm::ArenaOffer card_of(LocalStore& store, int rank) {
  return comm::decode_offer(store.get(fmt::format("arena/x/{}", rank), soon())).value();
}

// A worker that a test plays itself: it proves the secret, and then sends what it likes.
class Impostor {
 public:
  Impostor(std::shared_ptr<LocalStore> store, int rank, const std::string& secret = kSecret)
      : store_(std::move(store)), party_{secret, kWorld, "x", rank, 2} {
    store_->put(fmt::format("arena/x/{}", rank),
                comm::encode(comm::ArenaOffer{comm::host_identity(), listener_.name, kPage}));
  }

  void connect() {
    socket_ = comm::call_locally(card_of(*store_, 0).socket_name).socket;
    session_ = Session::to(party_, 0);
    comm::send_packet(socket_.get(), session_->hello());
  }
  void accept() {
    ASSERT_TRUE(base::wait_ready(listener_.socket.get(), POLLIN, soon()));
    bool exhausted = false;
    socket_ = comm::accept_locally(listener_.socket.get(), exhausted);
    session_ = Session::from_anyone(party_);
  }
  // Follows the protocol up to the packet that brings the arena, which is returned; an empty one
  // when the worker has ended the conversation.
  std::string talk_until_arena() {
    while (true) {
      EXPECT_TRUE(base::wait_ready(socket_.get(), POLLIN, soon()));
      const auto packet = comm::receive_packet(socket_.get(), 64, comm::Descriptors::kTaken);
      if (packet.arrival != comm::Arrival::kPacket) return "";
      const auto reply = session_->receive(packet.bytes);
      if (!reply) return "";
      if (reply->with_arena) return reply->packet;
      comm::send_packet(socket_.get(), reply->packet);
    }
  }
  void send(const std::string& packet, int fd) const {
    EXPECT_TRUE(comm::send_packet(socket_.get(), packet, fd));
  }
  void leave() { socket_.reset(); }
  void stop_listening() { listener_.socket.reset(); }

 private:
  std::shared_ptr<LocalStore> store_;
  comm::Party party_;
  comm::LocalListener listener_ = comm::listen_locally();
  base::Fd socket_;
  std::optional<Session> session_;
};

TEST(ArenaHandOver, ProcessesSeeEachOthersWrites) {
  for (const int size : {1, 2, 3, 4}) {
    ProcessWorld workers(size, [](Bootstrap& bootstrap) {
      share_and_check(bootstrap, "first", soon());
      share_and_check(bootstrap, "second", soon());
    });
    for (int rank = 0; rank < size; ++rank) {
      const auto outcome = workers.wait(rank, soon());
      ASSERT_TRUE(outcome) << "rank " << rank << " hangs";
      EXPECT_FALSE(outcome->kind) << outcome->text;
      EXPECT_EQ(outcome->text, "") << "rank " << rank;
    }
  }
}

TEST(ArenaHandOver, ThreadsOfOneProcessDoTooAndLeaveNoDescriptor) {
  const auto before = open_descriptors();
  for (int round = 0; round < 10; ++round) {
    const auto store = std::make_shared<LocalStore>();
    std::list<Worker> workers;
    for (int rank = 0; rank < 5; ++rank) {
      workers.emplace_back(store, rank, 5, share_by(seconds(20)));
    }
    for (Worker& worker : workers) EXPECT_FALSE(worker.end().kind) << worker.end().text;
  }
  EXPECT_EQ(open_descriptors(), before);
}

enum class With { kBytes, kDescriptor };

// Connects, and does with the connection what a stranger may do.
base::Fd stranger_at(const std::string& socket_name, const std::string& first_packet,
                     With with = With::kBytes) {
  auto called = comm::call_locally(socket_name);
  if (called.socket && !first_packet.empty()) {
    comm::send_packet(called.socket.get(), first_packet,
                      with == With::kDescriptor ? called.socket.get() : -1);
  }
  return std::move(called.socket);
}

TEST(ArenaHandOver, StrangersThatStallOrTalkNonsenseHoldUpNothing) {
  const auto before = open_descriptors();
  {
    const auto store = std::make_shared<LocalStore>();
    Worker zero(store, 0, 3, share_by(seconds(20)));
    Worker one(store, 1, 3, share_by(seconds(20)));
    const comm::Party wrong{"a guess", kWorld, "x", 2, 3};
    std::vector<base::Fd> strangers;
    for (const int rank : {0, 1}) {
      const std::string at = card_of(*store, rank).socket_name;
      strangers.push_back(stranger_at(at, ""));
      strangers.push_back(stranger_at(at, "GET / HTTP/1.1\r\n"));
      strangers.push_back(stranger_at(at, "take this", With::kDescriptor));
      strangers.push_back(stranger_at(at, std::string(5000, 'x')));
      strangers.push_back(stranger_at(at, Session::to(wrong, rank).hello()));
    }
    Worker two(store, 2, 3, share_by(seconds(20)));
    for (Worker* worker : {&zero, &one, &two}) {
      EXPECT_FALSE(worker->end().kind) << worker->end().text;
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ArenaHandOver, ACrowdOfStrangersAtTheSocketDelaysAndNoMore) {
  const auto store = std::make_shared<LocalStore>();
  Worker zero(store, 0, 3, share_by(seconds(20)));
  Worker one(store, 1, 3, share_by(seconds(20)));
  std::vector<base::Fd> crowd;
  for (int i = 0; i < 300; ++i) {
    crowd.push_back(stranger_at(card_of(*store, 0).socket_name, i % 2 == 0 ? "" : "hello?"));
  }
  Worker two(store, 2, 3, share_by(seconds(20)));
  for (Worker* worker : {&zero, &one, &two}) {
    EXPECT_FALSE(worker->end().kind) << worker->end().text;
  }
}

TEST(ArenaHandOver, AStrangerThatStallsIsDroppedLongBeforeTheDeadline) {
  const auto store = std::make_shared<LocalStore>();
  Impostor peer(store, 1);
  Worker zero(store, 0, 2, share_by(seconds(100)));
  const base::Fd stranger = stranger_at(card_of(*store, 0).socket_name, "");
  ASSERT_TRUE(base::wait_ready(stranger.get(), POLLIN, soon()));
  EXPECT_EQ(comm::receive_packet(stranger.get(), 64, comm::Descriptors::kTaken).arrival,
            comm::Arrival::kEnd);
  peer.connect();
  EXPECT_NE(peer.talk_until_arena(), "") << "the real one is served after it as before";
  peer.leave();
}

TEST(ArenaHandOver, WhoDoesNotKnowTheSecretGetsNoProofAndNoDescriptor) {
  const auto store = std::make_shared<LocalStore>();
  Impostor impostor(store, 1, "a guess");
  Worker zero(store, 0, 2, share_by(milliseconds(1500)));
  impostor.connect();
  EXPECT_EQ(impostor.talk_until_arena(), "");
  EXPECT_EQ(zero.end().kind, ErrorKind::kTimeout) << zero.end().text;
  EXPECT_THAT(zero.end().ranks, ElementsAre(1));
}

TEST(ArenaHandOver, WorkersWithDifferentSecretsEndAtTheDeadline) {
  const auto store = std::make_shared<LocalStore>();
  Worker zero(store, 0, 2, share_by(milliseconds(600)), "one");
  Worker one(store, 1, 2, share_by(milliseconds(600)), "another");
  EXPECT_EQ(zero.end().kind, ErrorKind::kTimeout) << zero.end().text;
  EXPECT_THAT(zero.end().ranks, ElementsAre(1));
  // Its last call may find that the other has given up.
  EXPECT_TRUE(one.end().kind == ErrorKind::kTimeout || one.end().kind == ErrorKind::kPeerLost);
  EXPECT_THAT(one.end().ranks, ElementsAre(0));
}

TEST(ArenaHandOver, AProvenPeerThatSendsNoArenaIsAMismatchWithItsName) {
  const auto before = open_descriptors();
  const base::Pipe pipe = base::make_pipe();
  const base::Fd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), static_cast<off_t>(kPage)), 0);
  const Arena larger = Arena::create(2 * kPage);
  for (const int fd : {pipe.read.get(), unsealed.get(), larger.fd(), -1}) {
    const auto store = std::make_shared<LocalStore>();
    Impostor impostor(store, 1);
    Worker zero(store, 0, 2, share_by(seconds(20)));
    impostor.connect();
    impostor.send(impostor.talk_until_arena(), fd);
    EXPECT_EQ(zero.end().kind, ErrorKind::kMismatch) << zero.end().text;
    EXPECT_THAT(zero.end().ranks, ElementsAre(1));
  }
  for (const int fd : {pipe.read.get(), -1}) {
    const auto store = std::make_shared<LocalStore>();
    Impostor impostor(store, 0);
    Worker one(store, 1, 2, share_by(seconds(20)));
    impostor.accept();
    impostor.send(impostor.talk_until_arena(), fd);
    EXPECT_EQ(one.end().kind, ErrorKind::kMismatch) << one.end().text;
    EXPECT_THAT(one.end().ranks, ElementsAre(0));
  }
  EXPECT_EQ(open_descriptors(), before + 4);  // the pipe, the memory, the larger arena
}

TEST(ArenaHandOver, AProvenPeerThatLeavesOrStopsListeningIsLostAtOnce) {
  const auto store = std::make_shared<LocalStore>();
  Impostor leaving(store, 1);
  Worker zero(store, 0, 2, share_by(seconds(100)));
  leaving.connect();
  EXPECT_NE(leaving.talk_until_arena(), "");
  leaving.leave();
  EXPECT_EQ(zero.end().kind, ErrorKind::kPeerLost) << zero.end().text;
  EXPECT_THAT(zero.end().ranks, ElementsAre(1));

  const auto other = std::make_shared<LocalStore>();
  Impostor deaf(other, 0);
  deaf.stop_listening();
  Worker one(other, 1, 2, share_by(seconds(100)));
  EXPECT_EQ(one.end().kind, ErrorKind::kPeerLost) << one.end().text;
  EXPECT_THAT(one.end().text, HasSubstr("nobody listens"));
}

TEST(ArenaHandOver, WorkersThatNeverComeAreNamedAtTheDeadline) {
  const auto store = std::make_shared<LocalStore>();
  Worker zero(store, 0, 4, share_by(milliseconds(400)));
  Worker two(store, 2, 4, share_by(milliseconds(400)));
  for (Worker* worker : {&zero, &two}) {
    EXPECT_EQ(worker->end().kind, ErrorKind::kTimeout) << worker->end().text;
    EXPECT_THAT(worker->end().ranks, ElementsAre(1, 3));
  }
  const auto other = std::make_shared<LocalStore>();
  Impostor silent(other, 1);
  Worker waiting(other, 0, 2, share_by(milliseconds(400)));
  EXPECT_EQ(waiting.end().kind, ErrorKind::kTimeout) << waiting.end().text;
  EXPECT_THAT(waiting.end().ranks, ElementsAre(1));
}

// Even ranks say that they are on another host than odd ones.
class OnTwoHosts : public Wrapped {
 public:
  using Wrapped::Wrapped;
  std::string get(std::string_view key, Deadline deadline) override {
    auto offer = comm::decode_offer(Wrapped::get(key, deadline)).value();
    if ((key.back() - '0') % 2 != rank() % 2) offer.host = "elsewhere";
    return comm::encode(offer);
  }
};

TEST(ArenaHandOver, WorkersOfOtherHostsHaveNone) {
  const auto store = std::make_shared<LocalStore>();
  std::list<Worker> workers;
  for (int rank = 0; rank < 4; ++rank) {
    workers.emplace_back(store, rank, 4, [](Bootstrap& inner) {
      OnTwoHosts bootstrap(inner);
      const Arena mine = Arena::create(kPage);
      const auto arenas = share_arenas(mine, "x", bootstrap, soon());
      for (int peer = 0; peer < 4; ++peer) {
        insist(arenas[peer].has_value() == (peer % 2 == inner.rank() % 2), "by host");
      }
    });
  }
  for (Worker& worker : workers) EXPECT_FALSE(worker.end().kind) << worker.end().text;
}

// Counts what its worker asks for.
class Counted : public Wrapped {
 public:
  using Wrapped::Wrapped;
  std::string get(std::string_view key, Deadline deadline) override {
    ++asked;
    return Wrapped::get(key, deadline);
  }
  int asked = 0;
};

TEST(ArenaHandOver, WorkersAskOnlyForThoseThatTheyAreToldOf) {
  const auto store = std::make_shared<LocalStore>();
  std::list<Worker> workers;
  for (int rank = 0; rank < 6; ++rank) {
    workers.emplace_back(store, rank, 6, [](Bootstrap& inner) {
      Counted bootstrap(inner);
      const Arena mine = Arena::create(kPage);
      const int first = inner.rank() / 2 * 2;
      const auto arenas =
          comm::HandOver(mine, "x", bootstrap, soon(), {nullptr, {first, first + 1}}).run();
      insist(bootstrap.asked == 1, "for the neighbour");
      for (int peer = 0; peer < 6; ++peer)
        insist(arenas[peer].has_value() == (peer / 2 == inner.rank() / 2), "of neighbours");
    });
  }
  for (Worker& worker : workers) EXPECT_FALSE(worker.end().kind) << worker.end().text;
}

// Kills its process at the n-th call.
class Deadly : public Wrapped {
 public:
  Deadly(Bootstrap& inner, int calls) : Wrapped(inner), left_(calls) {}
  void put(std::string_view key, std::string_view value, Deadline deadline) override {
    count();
    Wrapped::put(key, value, deadline);
  }
  std::string get(std::string_view key, Deadline deadline) override {
    count();
    return Wrapped::get(key, deadline);
  }

 private:
  void count() {
    if (left_-- == 0) ::raise(SIGKILL);
  }
  int left_;
};

// How one of two workers ends when it can open only so many descriptors more once it knows the other's socket.
Outcome share_with_few_descriptors(int victim, int free) {
  ProcessWorld workers(2, [&](Bootstrap& inner) {
    FewAfterwards few(inner, free);
    Bootstrap& bootstrap = inner.rank() == victim ? static_cast<Bootstrap&>(few) : inner;
    share_arenas(Arena::create(kPage), "x", bootstrap, soon());
  });
  const auto outcome = workers.wait(victim, Deadline::after(seconds(10)));
  return outcome ? *outcome : Outcome{ErrorKind::kTimeout, {}, "it hangs", {}};
}

TEST(ArenaHandOver, AWorkerWithoutDescriptorsSaysThatOfItselfAndBlamesNobody) {
  for (const int victim : {0, 1}) {
    int free = 0;
    for (bool short_of_them = true; short_of_them; ++free) {
      SCOPED_TRACE(fmt::format("rank {} with {} descriptors left", victim, free));
      const Outcome outcome = share_with_few_descriptors(victim, free);
      short_of_them = outcome.kind.has_value();
      if (!short_of_them) continue;
      ASSERT_EQ(outcome.kind, ErrorKind::kUnavailable) << outcome.text;
      EXPECT_THAT(outcome.ranks, ElementsAre(victim)) << outcome.text;
      EXPECT_THAT(outcome.text, HasSubstr("ulimit -n"));
    }
    EXPECT_GE(free, 3) << "a socket, what comes through it, a copy of that";
  }
}

// Every worker but the victim names it, in this way.
void expect_survivors_name(ProcessWorld& workers, int size, int victim, ErrorKind kind) {
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    const auto outcome = workers.wait(rank, soon());
    ASSERT_TRUE(outcome) << "rank " << rank << " hangs";
    EXPECT_EQ(outcome->kind, kind) << outcome->text;
    EXPECT_THAT(outcome->ranks, ElementsAre(victim)) << outcome->text;
  }
}

TEST(ArenaHandOver, AWorkerKilledBeforeAnybodyKnowsWhereItIsIsATimeout) {
  for (const int victim : {0, 1, 2}) {
    ProcessWorld workers(3, [&](Bootstrap& inner) {
      Deadly bootstrap(inner, inner.rank() == victim ? 0 : 1000);
      share_and_check(bootstrap, "x", Deadline::after(milliseconds(1000)));
    });
    expect_survivors_name(workers, 3, victim, ErrorKind::kTimeout);
  }
}

TEST(ArenaHandOver, AWorkerKilledAfterwardsIsPeerLostToTheOthersLongBeforeTheirDeadline) {
  for (const int victim : {0, 1, 2}) {
    for (const int calls : {1, 2}) {
      SCOPED_TRACE(fmt::format("rank {} after {} calls", victim, calls));
      ProcessWorld workers(3, [&](Bootstrap& inner) {
        Deadly bootstrap(inner, inner.rank() == victim ? calls : 1000);
        share_and_check(bootstrap, "x", Deadline::after(seconds(300)));
      });
      expect_survivors_name(workers, 3, victim, ErrorKind::kPeerLost);
    }
  }
}

TEST(ArenaHandOver, AWorkerKilledAtARandomInstantEndsTheOthersByTheirDeadline) {
  std::mt19937 random(11);
  for (int round = 0; round < 6; ++round) {
    const int victim = static_cast<int>(random() % 3);
    ProcessWorld workers(3, [&](Bootstrap& bootstrap) {
      const Arena mine = Arena::create(kPage);
      for (int turn = 0;; ++turn) {
        share_arenas(mine, std::to_string(turn), bootstrap, Deadline::after(milliseconds(2000)));
        if (turn == 2) ProcessWorld::mark(bootstrap.rank(), "running");
      }
    });
    workers.await_marks("running", soon());
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % 10'000));  // the instant under test
    workers.signal(victim, SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      const auto outcome = workers.wait(rank, soon());
      ASSERT_TRUE(outcome) << "rank " << rank << " hangs";
      EXPECT_EQ(outcome->kind.has_value(), rank != victim) << outcome->text;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
