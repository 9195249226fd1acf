// What only workers of a real MPI can show.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/comm.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "comm/engines.h"
#include "tests/support/elements.h"
#include "tests/support/mpi_workers.h"

namespace lockstep::testing {
namespace {

using comm::Link;
using comm::Slot;
using comm::Transfer;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class MpiWorkers : public ::testing::TestWithParam<std::string> {
 protected:
  // Every worker with its link.
  void run_links(int size, const std::function<void(Link&)>& body) const {
    const auto outcomes = run_mpi_workers({GetParam(), size}, [&](Bootstrap& bootstrap) {
      const auto link = comm::connect_link("mpi", bootstrap, {.timeout = seconds(60)});
      body(*link);
    });
    for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.kind) << outcome.text;
  }
};

Deadline soon() {
  return Deadline::after(seconds(30));
}

void finish(const std::vector<std::unique_ptr<Transfer>>& transfers) {
  for (const auto& transfer : transfers) EXPECT_TRUE(transfer->wait(soon()));
}

TEST_P(MpiWorkers, LongAndEmptyMessagesCrossEachOther) {
  run_links(2, [](Link& link) {
    const int peer = 1 - link.rank();
    for (const std::size_t count : {std::size_t{0}, std::size_t{16} << 20}) {
      const auto mine = inputs_for<std::int32_t>(2, count)[link.rank()];
      std::vector<std::int32_t> other(count);
      std::vector<std::unique_ptr<Transfer>> transfers;
      transfers.push_back(link.send(peer, count, mine.data(), 4 * count));
      transfers.push_back(link.recv(peer, count, other.data(), 4 * count));
      finish(transfers);
      EXPECT_TRUE(same_bits(other, inputs_for<std::int32_t>(2, count)[peer]));
    }
  });
}

TEST_P(MpiWorkers, ManySlotsAreReceivedInAnyOrderByManyThreads) {
  constexpr Slot kSlots = 500;
  run_links(3, [](Link& link) {
    const int next = (link.rank() + 1) % 3;
    const int before = (link.rank() + 2) % 3;
    const auto slot_of = [](Slot i) { return i * 0x9e3779b97f4a7c15 >> 1; };
    std::vector<std::vector<std::uint64_t>> data;
    for (Slot i = 0; i < kSlots; ++i) data.emplace_back(i * 13 % 5000, i);
    std::vector<std::unique_ptr<Transfer>> sent;
    for (Slot i = 0; i < kSlots; ++i)
      sent.push_back(link.send(next, slot_of(i), data[i].data(), 8 * data[i].size()));
    std::vector<std::thread> threads;
    for (Slot first = 0; first < 4; ++first) {
      threads.emplace_back([&, first] {
        for (Slot i = kSlots - 4 + first; i < kSlots; i -= 4) {
          std::vector<std::uint64_t> got(data[i].size());
          EXPECT_TRUE(link.recv(before, slot_of(i), got.data(), 8 * got.size())->wait(soon()));
          EXPECT_EQ(got, data[i]);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    finish(sent);
  });
}

TEST_P(MpiWorkers, WhatNobodySendsEndsAtTheDeadlineAndACancelGivesTheMemoryBack) {
  run_links(2, [](Link& link) {
    const int peer = 1 - link.rank();
    std::vector<std::byte> room(1 << 20, std::byte{7});
    const auto begun = std::chrono::steady_clock::now();
    auto never = link.recv(peer, 1, room.data(), room.size());
    EXPECT_FALSE(never->wait(Deadline::after(milliseconds(100))));
    std::thread canceller([&] { never->cancel(); });
    EXPECT_FALSE(never->wait(soon()));
    canceller.join();
    never.reset();
    // A long one that nobody receives.
    auto unheard = link.send(peer, 2, room.data(), room.size());
    EXPECT_FALSE(unheard->wait(Deadline::after(milliseconds(100))));
    unheard.reset();
    room.assign(room.size(), std::byte{9});
    EXPECT_LT(std::chrono::steady_clock::now() - begun, seconds(20));
    const std::uint64_t mine = 17;  // the link goes on
    std::uint64_t other = 0;
    std::vector<std::unique_ptr<Transfer>> transfers;
    transfers.push_back(link.send(peer, 3, &mine, sizeof mine));
    transfers.push_back(link.recv(peer, 3, &other, sizeof other));
    finish(transfers);
    EXPECT_EQ(other, mine);
  });
}

TEST_P(MpiWorkers, AWorldThatIsNotMpisIsRefused) {
  struct Swapped : Wrapped {
    using Wrapped::Wrapped;
    int rank() const override { return 1 - Wrapped::rank(); }
  };
  const auto outcomes = run_mpi_workers({GetParam(), 2}, [&](Bootstrap& bootstrap) {
    Swapped swapped(bootstrap);
    connect("mpi", swapped, {.timeout = seconds(60)});
  });
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kUnavailable);
  EXPECT_THAT(outcomes[0].text, HasSubstr("rank 1 of 2 of this job is rank 0 of 2 to "));
  EXPECT_THAT(outcomes[1].text, HasSubstr("start the workers with its mpirun, or srun"));
}

// Stopped in the middle of an operation, by a thread of its own; the last one to give up wakes it.
TEST_P(MpiWorkers, AStoppedWorkerIsATimeoutToAllOthersAtTheDeadline) {
  Tally victim;
  Tally gave_up;
  const auto outcomes = run_workers({GetParam(), 3, milliseconds(1500)}, [&](Comm& comm) {
    std::vector<float> data(400'000, 1.0F);
    if (comm.rank() == 2) victim.set(::getpid());
    comm.barrier().wait();
    for (int round = 0;; ++round) {
      try {
        const Work work = comm.all_reduce(buffer_of(data));
        if (comm.rank() == 2 && round == 3) ::raise(SIGSTOP);
        work.wait();
      } catch (const Error&) {
        if (comm.rank() != 2 && ++gave_up == 2) ::kill(victim.load(), SIGCONT);
        throw;
      }
    }
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].kind, ErrorKind::kTimeout) << outcomes[rank].text;
    EXPECT_THAT(outcomes[rank].ranks, Contains(2)) << outcomes[rank].text;
  }
  EXPECT_TRUE(outcomes[2].kind) << "the woken worker must not believe that all is well";
}

std::string output_of(const std::vector<std::string>& words) {
  std::string line = "timeout 60";
  for (const auto& word : words) line += fmt::format(" '{}'", word);
  std::string output;
  FILE* pipe = ::popen((line + " 2>&1").c_str(), "r");
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  ::pclose(pipe);
  return output;
}

TEST_P(MpiWorkers, AProgramThatUsesMpiItselfKeepsItsOwn) {
  const std::string program = fmt::format("{}_{}", LOCKSTEP_TEST_MPI_PROGRAM, GetParam().substr(4));
  const auto run = [&](std::vector<std::string> more) {
    char name[] = "/tmp/lockstep-test-XXXXXX";
    const std::string folder = ::mkdtemp(name);
    auto words = mpi_launch(GetParam(), 2, folder);
    words.insert(words.end(), {program, folder});
    words.insert(words.end(), more.begin(), more.end());
    const std::string output = output_of(words);
    std::filesystem::remove_all(folder);
    return output;
  };
  EXPECT_THAT(run({}),
              AllOf(HasSubstr("3 and 3"), HasSubstr("finalised"), Not(HasSubstr("refused"))));
  EXPECT_THAT(run({"single"}), AllOf(HasSubstr("refused: the program has initialised MPI without "
                                               "MPI_THREAD_MULTIPLE"),
                                     HasSubstr("finalised")));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MpiWorkers);
INSTANTIATE_TEST_SUITE_P(Engine, MpiWorkers, ::testing::ValuesIn(mpi_engines()),
                         [](const auto& engine) { return engine.param; });

}  // namespace
}  // namespace lockstep::testing
