// The engine on a real GPU. Workers are processes that share the one GPU: NCCL takes them for workers of different hosts, by a
// name of a host for each, and connects them over the loopback. Right for what is computed and for what fails, not for speed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "comm/nccl/nccl_engine.h"
#include "tests/comm/nccl/device_cases.h"
#include "tests/support/survivors.h"
#include "tests/support/workers.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using Body = std::function<void(Comm&, comm::NcclApi&)>;

// This process forks, and must not touch the GPU itself.
#define NEEDS_A_GPU() \
  if (::access("/dev/nvidia0", F_OK) != 0) GTEST_SKIP() << "no GPU here"

std::unique_ptr<ProcessWorld> start(int size, milliseconds timeout, const Body& body) {
  return std::make_unique<ProcessWorld>(size, [timeout, body](Bootstrap& bootstrap) {
    ::setenv("NCCL_HOSTID", fmt::format("h{}", bootstrap.rank()).c_str(), 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    CommOptions options;
    options.timeout = timeout;
    Comm comm = connect("nccl", bootstrap, options);
    body(comm, *comm::load_nccl());
  });
}

void expect_all_return(ProcessWorld& workers, int size, std::chrono::seconds patience) {
  for (int rank = 0; rank < size; ++rank) {
    const auto outcome = workers.wait(rank, Deadline::after(patience));
    ASSERT_TRUE(outcome) << "rank " << rank << " hangs";
    EXPECT_FALSE(outcome->kind) << outcome->text;
    EXPECT_EQ(outcome->text, "");
  }
}

class Gpu : public ::testing::TestWithParam<int> {};

TEST_P(Gpu, DoesWhatEveryDeviceMust) {
  NEEDS_A_GPU();
  const int size = GetParam();
  const auto workers = start(size, milliseconds(60'000), [](Comm& comm, comm::NcclApi& api) {
    for (const DeviceCase& one : device_cases()) {
      if (std::find(one.sizes.begin(), one.sizes.end(), comm.size()) == one.sizes.end()) continue;
      const auto begun = Deadline::Clock::now();
      one.body(comm, api);
      const std::chrono::duration<double> took = Deadline::Clock::now() - begun;
      if (comm.rank() == 0)
        std::printf("  %d workers: %s %.2f s\n", comm.size(), one.name.c_str(), took.count());
      std::fflush(stdout);
    }
  });
  expect_all_return(*workers, size, std::chrono::seconds(200));
}

INSTANTIATE_TEST_SUITE_P(Workers, Gpu, ::testing::Values(1, 2, 3, 4));

// The same inputs through the engine of threads, bit for bit.
template <typename T>
void expect_bits_of_threads(int size) {
  constexpr std::size_t kCount = 1'000'003;
  const auto inputs = inputs_for<T>(size, kCount);
  std::vector<T> expected;
  run_all({"thread", size, milliseconds(60'000)}, [&](Comm& comm) {
    auto data = inputs[static_cast<std::size_t>(comm.rank())];
    comm.all_reduce(buffer_of(data), {.factor = 1.0 / 3}).wait();
    if (comm.rank() == 0) expected = data;
  });
  const auto workers = start(size, milliseconds(60'000), [&](Comm& comm, comm::NcclApi& api) {
    const TestStream stream(api);
    OnDevice<T> data(api, stream, inputs[static_cast<std::size_t>(comm.rank())]);
    comm.all_reduce(data.buffer(), {.factor = 1.0 / 3}).wait();
    require(same_bits(data.read(), expected), name(dtype_of<T>()));
  });
  expect_all_return(*workers, size, std::chrono::seconds(100));
}

TEST(GpuBits, AreThoseOfTheThreadEngine) {
  NEEDS_A_GPU();
  expect_bits_of_threads<float>(4);
  expect_bits_of_threads<BFloat16>(3);
}

// Reduces for ever; only a fault ends it.
void reduce_for_ever(Comm& comm, comm::NcclApi& api) {
  const TestStream stream(api);
  OnDevice<float> data(api, stream, std::vector<float>(400'000, 1.0F));
  for (int round = 0;; ++round) {
    comm.all_reduce(data.buffer()).wait();
    if (round == 2) ProcessWorld::mark(comm.rank(), "running");
  }
}

// The same, where nobody waits on the host: a stream does.
void queue_for_ever(Comm& comm, comm::NcclApi& api) {
  const TestStream stream(api);
  OnDevice<float> data(api, stream, std::vector<float>(400'000, 1.0F));
  for (int round = 0;; ++round) {
    comm.all_reduce(data.buffer()).wait_on(stream.get());
    if (round % 3 == 2) stream.drain();
    if (round == 2) ProcessWorld::mark(comm.rank(), "running");
  }
}

constexpr int kBatches = 4;
constexpr int kWorldsAtATime = 5;

// In batches: most of the time goes into starting.
void expect_end_of_worlds(int signal, milliseconds timeout, ErrorKind kind, milliseconds patience) {
  std::mt19937 random(7);
  for (int batch = 0; batch < kBatches; ++batch) {
    std::vector<std::unique_ptr<ProcessWorld>> worlds;
    const auto size_of = [&](int world) { return world % 2 == 0 ? 2 : 3; };
    for (int i = 0; i < kWorldsAtATime; ++i)
      worlds.push_back(
          start(size_of(i), timeout, (batch + i) % 2 == 0 ? reduce_for_ever : queue_for_ever));
    for (const auto& workers : worlds)
      workers->await_marks("running", Deadline::after(std::chrono::seconds(60)));
    std::vector<int> victims;
    for (int i = 0; i < kWorldsAtATime; ++i) {
      std::this_thread::sleep_for(
          std::chrono::microseconds(random() % 20'000));  // the instant under test
      victims.push_back(static_cast<int>(random() % static_cast<unsigned>(size_of(i))));
      worlds[static_cast<std::size_t>(i)]->signal(victims.back(), signal);
    }
    for (int i = 0; i < kWorldsAtATime; ++i) {
      SCOPED_TRACE(fmt::format("batch {}, world {}", batch, i));
      const auto at = static_cast<std::size_t>(i);
      expect_survivors_end(*worlds[at], size_of(i), victims[at], kind, patience);
    }
  }
}

TEST(GpuFaults, AKilledWorkerIsPeerLostToAllOthersAtAnyInstant) {
  NEEDS_A_GPU();
  expect_end_of_worlds(SIGKILL, milliseconds(30'000), ErrorKind::kPeerLost, milliseconds(10'000));
}

TEST(GpuFaults, AStoppedWorkerIsATimeoutToAllOthersAtTheDeadline) {
  NEEDS_A_GPU();
  expect_end_of_worlds(SIGSTOP, milliseconds(8000), ErrorKind::kTimeout, milliseconds(20'000));
}

// A world of one: what the engine adds to a kernel. Printed, not judged.
TEST(GpuSpeed, OfAWorldOfOne) {
  NEEDS_A_GPU();
  const auto workers = start(1, milliseconds(60'000), [](Comm& comm, comm::NcclApi& api) {
    const TestStream stream(api);
    for (const std::size_t count :
         {std::size_t{1} << 10, std::size_t{1} << 20, std::size_t{1} << 26}) {
      OnDevice<float> data(api, stream, std::vector<float>(count, 1.0F));
      const auto measure = [&](const std::function<void()>& call) {
        constexpr int kRounds = 100;
        for (int i = 0; i < 10; ++i) call();
        stream.drain();
        const auto begun = Deadline::Clock::now();
        for (int i = 0; i < kRounds; ++i) call();
        stream.drain();
        const std::chrono::duration<double, std::micro> took = Deadline::Clock::now() - begun;
        return took.count() / kRounds;
      };
      const double queued =
          measure([&] { comm.all_reduce(data.buffer(), {.factor = 0.999}).wait_on(stream.get()); });
      const flat::SumTask task{{data.buffer().data},
                               {0},
                               data.buffer().data,
                               count,
                               {DType::kFloat32, ReduceOp::kSum, 0.999}};
      const double bare = measure([&] { api.sum(task, stream.get()); });
      const double waited =
          measure([&] { comm.all_reduce(data.buffer(), {.factor = 0.999}).wait(); });
      std::printf(
          "  all_reduce of %zu float32 alone: kernel %.1f us, queued %.1f us, waited for %.1f us "
          "(%.0f GB/s)\n",
          count, bare, queued, waited, static_cast<double>(count) * 8 / queued / 1000);
      std::fflush(stdout);
    }
  });
  expect_all_return(*workers, 1, std::chrono::seconds(100));
}

}  // namespace
}  // namespace lockstep::testing
