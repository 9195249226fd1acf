// What must never hang: workers, devices and libraries that do not come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/comm/nccl/fake_worlds.h"
#include "tests/support/refused_thread.h"
#include "tests/support/survivors.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::HasSubstr;

class NcclFaults : public ::testing::TestWithParam<std::string> {
 protected:
  WorldSpec world(int size, milliseconds timeout = milliseconds(20'000)) const {
    return {GetParam(), size, timeout};
  }
  std::shared_ptr<FakeDevice> device = std::make_shared<FakeDevice>();
};

// Ones on the device, and the stream that they come from.
struct Ones {
  explicit Ones(FakeDevice& device, std::size_t count = 100'000)
      : stream(device), data(device, stream, std::vector<float>(count, 1.0F)) {}
  TestStream stream;
  OnDevice<float> data;
};

TEST_P(NcclFaults, ASilentPeerEndsInTimeoutThatNamesIt) {
  std::atomic<int> finished{0};
  const auto outcomes = run_on(device, world(3, milliseconds(400)), [&](Comm& comm) {
    Ones ones(*device);
    comm.all_reduce(ones.data.buffer()).wait();
    if (comm.rank() == 2) {
      while (finished < 2) std::this_thread::sleep_for(milliseconds(5));  // the silence under test
      return;
    }
    try {
      comm.all_reduce(ones.data.buffer()).wait();
    } catch (const Error&) {
      ++finished;
      EXPECT_THROW(static_cast<void>(comm.barrier()), Timeout);
      throw;
    }
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].kind, ErrorKind::kTimeout) << outcomes[rank].text;
    EXPECT_THAT(outcomes[rank].ranks, Contains(2)) << outcomes[rank].text;
    EXPECT_THAT(outcomes[rank].text, HasSubstr("all_reduce #1 of 100000 float32 on GPUs"));
  }
  EXPECT_EQ(device->left_over(), 0U);
}

// It has said what it does, and then nothing more comes from it.
TEST_P(NcclFaults, AWorkerThatStopsWhileItsDeviceIsWaitedForIsATimeoutThatNamesIt) {
  std::atomic<int> finished{0};
  const auto outcomes = run_on(device, world(3, milliseconds(600)), [&](Comm& comm) {
    Ones ones(*device);
    comm.all_reduce(ones.data.buffer()).wait();
    comm.barrier().wait();
    if (comm.rank() == 2) device->faults.frozen_rank = 2;
    try {
      comm.all_reduce(ones.data.buffer()).wait();
    } catch (const Error&) {
      if (++finished == 2) device->faults.frozen_rank = -1;
      throw;
    }
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].kind, ErrorKind::kTimeout) << outcomes[rank].text;
    EXPECT_EQ(outcomes[rank].ranks, std::vector<int>{2}) << outcomes[rank].text;
    EXPECT_LT(outcomes[rank].took, milliseconds(5000));
  }
  EXPECT_TRUE(outcomes[2].kind) << "the woken worker must not believe that all is well";
  EXPECT_EQ(device->left_over(), 0U);
}

// Nobody waits on the host: the device must be let go all the same.
TEST_P(NcclFaults, AStreamThatWaitsIsLetGoWhenTheOthersAreGone) {
  const auto outcomes = run_on(device, world(2, milliseconds(600)), [&](Comm& comm) {
    Ones ones(*device);
    comm.all_reduce(ones.data.buffer()).wait();
    comm.barrier().wait();
    if (comm.rank() == 1) device->faults.frozen_rank = 1;
    const Work work = comm.all_reduce(ones.data.buffer());
    if (comm.rank() == 1) {
      work.wait();
      return;
    }
    work.wait_on(ones.stream.get());
    ones.stream.drain();
    EXPECT_THROW(work.wait(), Timeout);
    device->faults.frozen_rank = -1;
    static_cast<void>(comm.all_reduce(ones.data.buffer()));  // says why
  });
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kTimeout) << outcomes[0].text;
  EXPECT_THAT(outcomes[0].ranks, Contains(1));
  EXPECT_EQ(device->left_over(), 0U);
}

TEST_P(NcclFaults, AClosedPeerEndsInPeerLostThatNamesIt) {
  const auto outcomes = run_on(device, world(3), [&](Comm& comm) {
    Ones ones(*device);
    comm.all_reduce(ones.data.buffer()).wait();
    if (comm.rank() == 2) return;  // its Comm is destroyed
    comm.all_reduce(ones.data.buffer()).wait();
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].kind, ErrorKind::kPeerLost) << outcomes[rank].text;
    EXPECT_THAT(outcomes[rank].ranks, Contains(2)) << outcomes[rank].text;
    EXPECT_LT(outcomes[rank].took, milliseconds(5000));
  }
  EXPECT_EQ(device->left_over(), 0U);
}

TEST_P(NcclFaults, ACommDestroyedWhileItsDeviceIsAtWorkIsPeerLostToTheOthers) {
  const auto outcomes = run_on(device, world(2), [&](Comm& comm) {
    Ones ones(*device);
    comm.all_reduce(ones.data.buffer()).wait();
    const auto open = std::make_shared<std::atomic<bool>>(false);
    if (comm.rank() == 1) device->hold(ones.stream.get(), open);
    const Work work = comm.all_reduce(ones.data.buffer());
    if (comm.rank() == 0) {
      comm.send(1, {nullptr, 0, DType::kUInt8}).wait();
      return work.wait();
    }
    comm.recv(0, {nullptr, 0, DType::kUInt8}).wait();  // the other one has called it, too
    Comm(std::move(comm));                             // destroyed here, the data still alive
    *open = true;
    device->settle();  // what waited behind its own stream touches the data once more
  });
  EXPECT_FALSE(outcomes[1].kind) << outcomes[1].text;
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kPeerLost) << outcomes[0].text;
  EXPECT_THAT(outcomes[0].ranks, Contains(1)) << outcomes[0].text;
}

TEST_P(NcclFaults, AWaitThatRunsOutOfTimeEndsTheCommAndTheDevicesWork) {
  const auto outcomes = run_on(device, world(2), [&](Comm& comm) {
    Ones ones(*device);
    comm.all_reduce(ones.data.buffer()).wait();
    comm.barrier().wait();
    if (comm.rank() == 1) device->faults.frozen_rank = 1;
    const Work work = comm.all_reduce(ones.data.buffer());
    if (comm.rank() == 1) {
      work.wait();  // all that it needs may be here already
      return comm.barrier().wait();
    }
    const auto begun = Deadline::Clock::now();
    EXPECT_THROW(work.wait(Deadline::after(milliseconds(100))), Timeout);
    EXPECT_LT(Deadline::Clock::now() - begun, std::chrono::seconds(5));
    EXPECT_TRUE(work.done());
    EXPECT_GE(device->aborts(), 1);
    device->faults.frozen_rank = -1;
    EXPECT_THROW(static_cast<void>(comm.barrier()), Timeout);
  });
  EXPECT_FALSE(outcomes[0].kind) << outcomes[0].text;
  EXPECT_TRUE(outcomes[1].kind) << "rank 1 must learn that rank 0 has ended";
  EXPECT_EQ(device->left_over(), 0U);
}

TEST_P(NcclFaults, ACommunicatorThatNeverFormsEndsAtTheDeadline) {
  device->faults.nobody_joins = true;
  const auto outcomes = run_on(device, world(2, milliseconds(300)), [&](Comm& comm) {
    Ones ones(*device);
    comm.all_reduce(ones.data.buffer()).wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kTimeout) << outcome.text;
    EXPECT_LT(outcome.took, milliseconds(5000));
  }
  EXPECT_EQ(device->left_over(), 0U);
}

TEST_P(NcclFaults, TroubleThatTheLibraryReportsEndsAllWorkers) {
  for (const bool by_peer : {true, false}) {
    device->faults.fails_of_rank = -1;
    device->faults.fails_by_peer = by_peer;
    const auto outcomes = run_on(device, world(3), [&](Comm& comm) {
      Ones ones(*device);
      comm.all_reduce(ones.data.buffer()).wait();
      if (comm.rank() == 1) device->faults.fails_of_rank = 1;
      comm.all_reduce(ones.data.buffer()).wait();
      comm.barrier().wait();
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.kind, by_peer ? ErrorKind::kPeerLost : ErrorKind::kUnavailable)
          << outcome.text;
      EXPECT_THAT(outcome.text, HasSubstr("the network is gone"));
      EXPECT_LT(outcome.took, milliseconds(8000));
    }
  }
  EXPECT_EQ(device->left_over(), 0U);
}

// A killed process closes its sockets, which NCCL sees at once, and then gives its GPU back, which takes seconds: only
// after that is it known to have ended.
TEST_P(NcclFaults, AWorkerThatTakesLongToEndIsNamed) {
  device->faults.fails_by_peer = true;
  const auto outcomes = run_on(device, world(2), [&](Comm& comm) {
    Ones ones(*device);
    comm.all_reduce(ones.data.buffer()).wait();
    if (comm.rank() == 1) device->faults.fails_of_rank = 0;
    comm.barrier().wait();
    const Work work = comm.all_reduce(ones.data.buffer());
    if (comm.rank() == 0) return work.wait();
    std::this_thread::sleep_for(milliseconds(1500));  // that is how long it takes
    Comm(std::move(comm));                            // destroyed here, the data still alive
    device->settle();
  });
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kPeerLost) << outcomes[0].text;
  EXPECT_THAT(outcomes[0].ranks, Contains(1)) << outcomes[0].text;
}

TEST_P(NcclFaults, ALibraryThatDoesNotComeBackFromAbortHoldsNobodyUp) {
  const auto outcomes = run_on(device, world(2, milliseconds(300)), [&](Comm& comm) {
    Ones ones(*device);
    comm.all_reduce(ones.data.buffer()).wait();
    device->faults.abort_hangs = true;
    if (comm.rank() == 1) {
      comm.recv(0, {nullptr, 0, DType::kUInt8}).wait();
      return;
    }
    comm.all_reduce(ones.data.buffer()).wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.kind);
    EXPECT_LT(outcome.took, milliseconds(20'000));
  }
  device->faults.abort_hangs = false;
  const auto deadline = Deadline::after(std::chrono::seconds(10));
  while (device->aborts() > device->returned_aborts() && !deadline.expired())
    std::this_thread::sleep_for(milliseconds(1));  // threads that were left behind
}

struct Disagreement {
  const char* what;
  std::function<Work(Comm&, Buffer, Buffer)> other;  // with memory of the device and of the host
};

TEST_P(NcclFaults, RanksThatDisagreeAllGetAMismatchThatNamesThem) {
  const Disagreement disagreements[] = {
      {"operation", [](Comm& c, Buffer d, Buffer) { return c.broadcast(d, 1); }},
      {"barrier", [](Comm& c, Buffer, Buffer) { return c.barrier(); }},
      {"size", [](Comm& c, Buffer d, Buffer) { return c.all_reduce(d.slice(0, d.count - 1)); }},
      {"op", [](Comm& c, Buffer d, Buffer) { return c.all_reduce(d, {ReduceOp::kMax}); }},
      {"algorithm", [](Comm& c, Buffer d,
                       Buffer) { return c.all_reduce(d, {.algorithm = Algorithm::kNative}); }},
      {"device", [](Comm& c, Buffer, Buffer h) { return c.all_reduce(h); }},
      {"pieces",
       [](Comm& c, Buffer d, Buffer) {
         return c.all_reduce({d.slice(0, 10), d.slice(10, d.count - 10)});
       }},
  };
  for (const Disagreement& disagreement : disagreements) {
    SCOPED_TRACE(disagreement.what);
    const auto outcomes = run_on(device, world(3, milliseconds(5000)), [&](Comm& comm) {
      Ones ones(*device, 50'000);
      std::vector<float> host(50'000, 1.0F);
      comm.all_reduce(ones.data.buffer()).wait();
      const Buffer data = ones.data.buffer();
      (comm.rank() == 1 ? disagreement.other(comm, data, buffer_of(host)) : comm.all_reduce(data))
          .wait();
      comm.barrier().wait();
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << outcome.text;
      EXPECT_THAT(outcome.ranks, Contains(1)) << outcome.text;
      EXPECT_LT(outcome.took, milliseconds(4000)) << "learnt of it at the deadline only";
    }
  }
  EXPECT_EQ(device->left_over(), 0U);
}

TEST_P(NcclFaults, RanksWithDifferentPiecesOfAsManyElementsGetAMismatch) {
  const auto outcomes = run_on(device, world(3, milliseconds(5000)), [&](Comm& comm) {
    Ones ones(*device, 50'000);
    const Buffer data = ones.data.buffer();
    const std::size_t first = comm.rank() == 1 ? 20 : 10;
    comm.all_reduce({data.slice(0, first), data.slice(first, data.count - first)}).wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("of 50000 float32 on GPUs (sum, direct, pieces "));
  }
  EXPECT_EQ(device->left_over(), 0U);
}

TEST_P(NcclFaults, RanksWithDifferentCountsOfSlicesGetAMismatch) {
  const auto outcomes = run_on(device, world(2, milliseconds(5000)), [&](Comm& comm) {
    Ones ones(*device, 200);
    const Buffer data = ones.data.buffer();
    const std::size_t own = comm.rank() == 1 ? 70 : 30;
    comm.all_to_all(data.slice(0, 100), data.slice(100, 100), {own, 100 - own, 100 - own, own})
        .wait();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("of 200 float32 on GPUs in all (counts "));
  }
  EXPECT_EQ(device->left_over(), 0U);
}

TEST_P(NcclFaults, MemoryThatCannotBeRegisteredIsUsedAllTheSame) {
  for (const bool can : {true, false}) {
    device->faults.no_registering = !can;
    const auto outcomes = run_on(device, world(2), [&](Comm& comm) {
      TestStream stream(*device);
      const auto before = comm.device_arena(kFirstGpu, 4000);
      comm.all_reduce({before->data(), 1000, DType::kFloat32, kFirstGpu, stream.get()}).wait();
      const auto after = comm.device_arena(kFirstGpu, 4000);
      EXPECT_EQ(before->registered(), can);
      EXPECT_EQ(after->registered(), can);
    });
    for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.kind) << outcome.text;
  }
  EXPECT_EQ(device->left_over(), 0U);
}

TEST_P(NcclFaults, AWorldOfOneRunsOneKernelAndNoCommunicator) {
  const auto outcomes = run_on(device, world(1), [&](Comm& comm) {
    Ones ones(*device);
    comm.all_reduce(ones.data.buffer(), {.factor = 0.5}).wait();
    EXPECT_EQ(ones.data.read(), std::vector<float>(100'000, 0.5F));
    EXPECT_EQ(device->sums(), 1);
    comm.all_reduce(ones.data.buffer()).wait();
    EXPECT_EQ(device->sums(), 1) << "a factor of 1 leaves nothing to do";
    const Buffer data = ones.data.buffer();
    comm.all_reduce({data.slice(0, 7), data.slice(7, data.count - 7)}).wait();
    EXPECT_EQ(device->sums(), 1) << "in pieces neither";
  });
  EXPECT_FALSE(outcomes[0].kind) << outcomes[0].text;
  EXPECT_EQ(device->destroyed(), 0);
  EXPECT_EQ(device->left_over(), 0U);
}

TEST(NcclEngine, AWorkMayOutliveItsComm) {
  const auto device = std::make_shared<FakeDevice>();
  Work kept;
  {
    Ones ones(*device);
    const auto outcomes = run_on(device, {"thread", 1, milliseconds(5000)}, [&](Comm& comm) {
      kept = comm.all_reduce(ones.data.buffer(), {.factor = 2});
      kept.wait();
    });
    EXPECT_FALSE(outcomes[0].kind) << outcomes[0].text;
  }
  kept.wait();
  EXPECT_TRUE(kept.done());
  kept = Work();
  EXPECT_EQ(device->left_over(), 0U);
}

TEST(NcclEngine, AWatchThatCannotStartIsUnavailableAndHoldsNobodyUp) {
  const auto device = std::make_shared<FakeDevice>();
  const auto outcomes = run_on(device, {"thread", 1, milliseconds(5000)}, [&](Comm& comm) {
    Ones ones(*device);
    static_cast<void>(comm.device_arena(kFirstGpu, 4000));  // its device's own threads come first
    const RefusedThread refused(0);
    const Work work = comm.all_reduce(ones.data.buffer(), {.factor = 2});
    EXPECT_TRUE(refused.happened());
    work.wait();
  });
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kUnavailable) << outcomes[0].text;
  EXPECT_THAT(outcomes[0].text, HasSubstr("no more threads"));
  EXPECT_EQ(device->left_over(), 0U);
}

TEST(NcclEngine, AnArenaIsGivenBackOnItsOwnDevice) {
  const auto device = std::make_shared<FakeDevice>();
  const auto outcomes = run_on(device, {"thread", 1, milliseconds(5000)}, [&](Comm& comm) {
    auto arena = comm.device_arena(kFirstGpu, 4000);
    device->choose_device(1);
    arena.reset();
    EXPECT_EQ(device->arena_released_on(), 0);
    EXPECT_EQ(device->current_device(), 1) << "the caller's choice";
  });
  EXPECT_FALSE(outcomes[0].kind) << outcomes[0].text;
  EXPECT_EQ(device->left_over(), 0U);
}

std::vector<std::string> hosts() {
  std::vector<std::string> names = engines_in_one_process();
  std::erase(names, "nccl");
  return names;
}

std::vector<std::string> hosts_between_processes() {
  std::vector<std::string> names = hosts();
  std::erase(names, "thread");
  return names;
}

// One that says when its worker waits for the others' devices. They are in other processes, and never come.
class Lonely : public FakeDevice {
 public:
  comm::NcclHandle join(const std::string& id, int rank, int size) override {
    ProcessWorld::mark(rank, "waiting");
    return FakeDevice::join(id, rank, size);
  }
};

class NcclProcessFaults : public ::testing::TestWithParam<std::string> {};

TEST_P(NcclProcessFaults, AWorkerKilledWhileItsDeviceIsWaitedForIsPeerLostToAllOthers) {
  ProcessWorld workers(3, [&](Bootstrap& bootstrap) {
    const auto device = std::make_shared<Lonely>();
    Comm comm = connect_beside(GetParam(), device, bootstrap, milliseconds(30'000));
    Ones ones(*device);
    comm.all_reduce(ones.data.buffer()).wait();
  });
  workers.await_marks("waiting", Deadline::after(std::chrono::seconds(15)));
  workers.signal(1, SIGKILL);
  expect_survivors_end(workers, 3, 1, ErrorKind::kPeerLost, milliseconds(5000));
}

INSTANTIATE_TEST_SUITE_P(Host, NcclFaults, ::testing::ValuesIn(hosts()),
                         [](const auto& host) { return host.param; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NcclProcessFaults);
INSTANTIATE_TEST_SUITE_P(Host, NcclProcessFaults, ::testing::ValuesIn(hosts_between_processes()),
                         [](const auto& host) { return host.param; });

}  // namespace
}  // namespace lockstep::testing
