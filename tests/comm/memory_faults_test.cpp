// A worker that runs out of memory at any allocation of an operation: it fails, and nobody waits for it until a deadline.
#include <gtest/gtest.h>
#include <lockstep/comm.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/support/elements.h"
#include "tests/support/slow_build.h"
#include "tests/support/workers.h"

namespace {

// So many more allocations of this process succeed; the next one fails, and the others do not. Negative: none fails.
std::atomic<int> good_allocations{-1};

}  // namespace

// Not inlined: the compiler would see a mismatch of new and free.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (good_allocations.load() >= 0 && good_allocations.fetch_sub(1) == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;

// Messages that ask first, both ways, and a collective of private memory: three threads that take turns at the rings.
struct Data {
  std::vector<float> out = std::vector<float>(40'000);
  std::vector<float> in = std::vector<float>(40'000);
  std::vector<float> sum = std::vector<float>(20'000);
};
void exchange_all(Comm& comm, Data& data) {
  const int peer = 1 - comm.rank();
  const Work sent = comm.send(peer, buffer_of(data.out));
  const Work received = comm.recv(peer, buffer_of(data.in));
  comm.all_reduce(buffer_of(data.sum)).wait();
  received.wait();
  sent.wait();
}

TEST(MemoryFaults, AWorkerWithoutMemoryFailsAtOnceAndSoDoesWhoWaitsForIt) {
  int failed = 0;
  for (int good = 0; good < 120; good += kSlowBuild ? 7 : 1) {
    SCOPED_TRACE("allocation " + std::to_string(good));
    ProcessWorld workers({"shm", 2, milliseconds(20'000)}, [good](Comm& comm) {
      Comm before = comm.channel(1);  // what is allocated once in a process is there
      Data data;
      exchange_all(before, data);
      before.barrier().wait();
      if (comm.rank() == 1) good_allocations = good;
      exchange_all(comm, data);
      good_allocations = -1;
      comm.barrier().wait();
    });
    for (int rank = 0; rank < 2; ++rank) {
      const auto outcome = workers.wait(rank, Deadline::after(std::chrono::seconds(15)));
      ASSERT_TRUE(outcome) << "rank " << rank << " waits for its deadline";
      if (!outcome->kind) {
        EXPECT_EQ(outcome->text, "") << "rank " << rank;
        continue;
      }
      ++failed;
      // A worker that has nothing left to wait for may leave before the other asks.
      EXPECT_TRUE(outcome->kind == ErrorKind::kUnavailable || outcome->kind == ErrorKind::kPeerLost)
          << outcome->text;
      EXPECT_EQ(outcome->ranks, std::vector<int>{1}) << outcome->text;
    }
  }
  EXPECT_GT(failed, 10) << "allocations fail";
}

}  // namespace
}  // namespace lockstep::testing
