// The link over an MPI made of queues, which can be slow, hold memory and fail on command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "comm/mpi/mpi_frame.h"
#include "comm/mpi/mpi_library.h"
#include "comm/mpi/mpi_link.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

Deadline soon() {
  return Deadline::after(seconds(20));
}

// What all ranks share.
class Sea {
 public:
  using Bytes = std::vector<std::byte>;

  void put(int from, int to, Bytes bytes) {
    const base::Lock lock(mutex_);
    queues_[{from, to}].push_back(std::move(bytes));
  }
  std::optional<MpiArrival> first_for(int to, int size) {
    const base::Lock lock(mutex_);
    for (int from = 0; from < size && !frozen; ++from) {
      const auto& queue = queues_[{from, to}];
      if (!queue.empty()) return MpiArrival{from, queue.front().size()};
    }
    return std::nullopt;
  }
  Bytes take(int from, int to) {
    const base::Lock lock(mutex_);
    Bytes bytes = std::move(queues_[{from, to}].front());
    queues_[{from, to}].pop_front();
    return bytes;
  }

  std::atomic<bool> frozen{false};  // nothing arrives, and MPI keeps what it sends
  std::atomic<int> broken{-1};      // a rank that cannot be sent to

 private:
  base::Mutex mutex_;
  std::map<std::pair<int, int>, std::deque<Bytes>> queues_ LOCKSTEP_GUARDED_BY(mutex_);
};

class QueueRequest : public MpiRequest {
 public:
  explicit QueueRequest(Sea* sea) : sea_(sea) {}
  bool done() override { return sea_ == nullptr || !sea_->frozen; }

 private:
  Sea* sea_;  // null: done at once
};

class QueueCommunicator : public MpiCommunicator {
 public:
  QueueCommunicator(std::shared_ptr<Sea> sea, int rank, int size)
      : sea_(std::move(sea)), rank_(rank), size_(size) {}

  bool formed() override { return true; }
  void free() override { freed = true; }
  std::unique_ptr<MpiRequest> send(int peer, const void* data, std::size_t bytes) override {
    if (peer == sea_->broken) throw Unavailable("MPI_Isend: the cable is cut");
    const auto* begin = static_cast<const std::byte*>(data);
    sea_->put(rank_, peer, {begin, begin + bytes});
    return std::make_unique<QueueRequest>(sea_.get());
  }
  std::unique_ptr<MpiRequest> receive(int peer, void* data, std::size_t bytes) override {
    const auto message = sea_->take(peer, rank_);
    EXPECT_EQ(message.size(), bytes);
    std::memcpy(data, message.data(), bytes);
    return std::make_unique<QueueRequest>(nullptr);
  }
  std::optional<MpiArrival> arrival() override { return sea_->first_for(rank_, size_); }

  bool freed = false;

 private:
  std::shared_ptr<Sea> sea_;
  int rank_;
  int size_;
};

class CountingProcess : public MpiProcess {
 public:
  bool usable() noexcept override { return true; }
  void keep(MpiLeftover leftover) noexcept override { kept += leftover.requests.size(); }

  std::atomic<std::size_t> kept{0};
};

struct World {
  explicit World(int size) {
    for (int rank = 0; rank < size; ++rank) {
      communicators.push_back(std::make_shared<QueueCommunicator>(sea, rank, size));
      links.push_back(make_mpi_link({rank, size, true, communicators.back(), &process}));
    }
  }
  // Leaving waits for the others.
  ~World() {
    std::vector<std::thread> threads;
    for (auto& link : links) threads.emplace_back([&] { link.reset(); });
    for (auto& thread : threads) thread.join();
  }

  CountingProcess process;
  std::shared_ptr<Sea> sea = std::make_shared<Sea>();
  std::vector<std::shared_ptr<QueueCommunicator>> communicators;
  std::vector<std::shared_ptr<Link>> links;
};

std::vector<std::byte> pattern(std::size_t bytes, int seed) {
  std::vector<std::byte> values(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    values[i] = static_cast<std::byte>((i * 131 + i / 977 + static_cast<std::size_t>(seed)) & 0xff);
  return values;
}

constexpr std::size_t kLengths[] = {
    0, 1, kShortMessageBytes, kShortMessageBytes + 1, kMostMpiData, 4 * kMostMpiData + 7};

// Twice in each slot, so that their order shows.
void send_all(Link& link, int peer, Slot first) {
  std::vector<std::vector<std::byte>> data;
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < std::size(kLengths); ++i)
      data.push_back(pattern(kLengths[i], static_cast<int>(first + i) + 7 * round));
  }
  for (std::size_t i = 0; i < data.size(); ++i)
    transfers.push_back(
        link.send(peer, first + i % std::size(kLengths), data[i].data(), data[i].size()));
  for (const auto& transfer : transfers) EXPECT_TRUE(transfer->wait(soon()));
}

void receive_all(Link& link, int peer, Slot first) {
  for (std::size_t i = std::size(kLengths); i-- > 0;) {
    for (int round = 0; round < 2; ++round) {
      std::vector<std::byte> data(kLengths[i] + 3);
      EXPECT_TRUE(link.recv(peer, first + i, data.data(), data.size())->wait(soon()));
      data.resize(kLengths[i]);
      EXPECT_EQ(data, pattern(kLengths[i], static_cast<int>(first + i) + 7 * round));
    }
  }
}

TEST(MpiLink, MessagesOfAllLengthsArriveInOrderBetweenManyThreads) {
  World world(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    const int next = (rank + 1) % 3;
    for (const Slot first : {std::uint64_t{1000}, std::uint64_t{1} << 62}) {
      threads.emplace_back([&, rank, next, first] { send_all(*world.links[rank], next, first); });
      threads.emplace_back(
          [&, rank, next, first] { receive_all(*world.links[next], rank, first); });
    }
  }
  for (auto& thread : threads) thread.join();
}

TEST(MpiLink, AReceiveInTheMiddleOfItsMessageGivesItsMemoryBack) {
  World world(2);
  const auto data = pattern(64 * kMostMpiData, 1);
  std::vector<std::byte> room(data.size());
  auto sent = world.links[0]->send(1, 5, data.data(), data.size());
  auto received = world.links[1]->recv(0, 5, room.data(), room.size());
  received->wait(
      Deadline::after(milliseconds(0)));  // has granted it, and on a busy host even got it
  received->cancel();
  received.reset();
  room.assign(room.size(), std::byte{0xee});
  EXPECT_TRUE(sent->wait(soon()));  // its bytes go nowhere
  std::thread sender([&] { send_all(*world.links[0], 1, 100); });
  receive_all(*world.links[1], 0, 100);  // everything before it has come
  sender.join();
  EXPECT_EQ(room, std::vector<std::byte>(room.size(), std::byte{0xee}));
}

TEST(MpiLink, ASendThatIsWithdrawnNeverCompletesItsReceive) {
  World world(2);
  auto data = std::make_unique<std::vector<std::byte>>(pattern(kMostMpiData * 8, 1));
  auto sent = world.links[0]->send(1, 5, data->data(), data->size());
  sent->cancel();
  EXPECT_FALSE(sent->wait(soon()));
  sent.reset();
  data.reset();
  std::vector<std::byte> room(kMostMpiData * 8);
  EXPECT_FALSE(world.links[1]
                   ->recv(0, 5, room.data(), room.size())
                   ->wait(Deadline::after(milliseconds(50))));
}

TEST(MpiLink, WhatMpiStillHasWhenALinkEndsIsKept) {
  World world(2);
  world.sea->frozen = true;
  const auto data = pattern(100, 1);
  auto sent = world.links[0]->send(1, 5, data.data(), data.size());
  EXPECT_TRUE(sent->wait(soon()));  // it is copied
  sent.reset();
  world.links[0]->fail({ErrorKind::kUnavailable, {0}, "enough"});
  EXPECT_EQ(world.process.kept, 3U) << "the message, the notice and the last frame";
  EXPECT_FALSE(world.communicators[0]->freed);
  world.sea->frozen = false;
  std::byte room[100];
  EXPECT_TRUE(world.links[1]->recv(0, 5, room, 100)->wait(soon())) << "sent before the end";
  try {
    world.links[1]->recv(0, 6, room, 100)->wait(soon());
    FAIL();
  } catch (const Unavailable& error) {
    EXPECT_STREQ(error.what(), "enough");
  }
}

TEST(MpiLink, AnErrorOfMpiIsPeerLostWithItsWords) {
  World world(3);
  world.sea->broken = 1;
  const std::byte data[10] = {};
  const auto sent = world.links[0]->send(1, 5, data, 10);
  try {
    sent->wait(soon());
    FAIL();
  } catch (const PeerLost& error) {
    EXPECT_THAT(error.ranks(), ElementsAre(1));
    EXPECT_THAT(error.what(), HasSubstr("rank 1 was lost: MPI_Isend: the cable is cut"));
  }
  EXPECT_TRUE(world.links[0]->end_of(1));
  EXPECT_FALSE(world.links[0]->end_of(2));
  world.sea->broken = -1;
}

TEST(MpiLink, MessagesThatAreNoFramesAreAMismatch) {
  MpiFrame other;
  other.mark = 1;
  Sea::Bytes wrong_mark(sizeof other);
  std::memcpy(wrong_mark.data(), &other, sizeof other);
  MpiFrame longer{.kind = MpiFrame::Kind::kMessage, .slot = 5, .total = 100};
  Sea::Bytes wrong_length(sizeof longer);
  std::memcpy(wrong_length.data(), &longer, sizeof longer);
  for (const Sea::Bytes& bytes :
       {Sea::Bytes(3), Sea::Bytes(sizeof other + kMostMpiData + 1), wrong_mark, wrong_length}) {
    World world(2);
    world.sea->put(0, 1, bytes);
    std::byte room[100];
    EXPECT_THROW(world.links[1]->recv(0, 5, room, 100)->wait(soon()), Mismatch);
  }
}

TEST(MpiLibrary, IsTheProgramsOwnElseThatOfTheLauncher) {
  const auto mpi = [](std::optional<MpiKind> loaded, const std::string& set) {
    return mpi_of({loaded, [set](const char* name) {
                     return set == name ? std::optional<std::string>("0") : std::nullopt;
                   }});
  };
  EXPECT_EQ(mpi(std::nullopt, "OMPI_COMM_WORLD_RANK"), MpiKind::kOpenMpi);
  EXPECT_EQ(mpi(std::nullopt, "PMIX_RANK"), MpiKind::kOpenMpi);
  EXPECT_EQ(mpi(std::nullopt, "PMI_RANK"), MpiKind::kMpich);
  EXPECT_EQ(mpi(std::nullopt, "RANK"), std::nullopt);
  EXPECT_EQ(mpi(MpiKind::kOpenMpi, "PMI_RANK"), MpiKind::kOpenMpi);
  EXPECT_EQ(mpi(MpiKind::kMpich, ""), MpiKind::kMpich);
}

}  // namespace
}  // namespace lockstep::comm
