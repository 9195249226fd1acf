// What only real processes can show: a worker killed or stopped in the middle of an operation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "base/fd.h"
#include "tests/support/elements.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/slow_build.h"
#include "tests/support/stepper.h"
#include "tests/support/survivors.h"
#include "tests/support/workers.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;

bool full() {
  return std::getenv("LOCKSTEP_TEST_FULL") != nullptr;
}

class ProcessFaults : public ::testing::TestWithParam<std::string> {};

// Whether some worker has ended because another one was late.
bool is_late(ProcessWorld& workers, int size) {
  for (int rank = 0; rank < size; ++rank) {
    const auto outcome = workers.wait(rank, Deadline::after(milliseconds(0)));
    if (outcome && outcome->kind == ErrorKind::kTimeout) return true;
  }
  return false;
}

// Workers that are in the operation that a fault is to end. Where operations end soon a world has as little time to form,
// and a busy machine may need more: then it forms again. One that hangs fails the test.
std::unique_ptr<ProcessWorld> running_world(const WorldSpec& spec,
                                            const std::function<void(Comm&)>& body) {
  constexpr int kTries = 3;
  for (int tries = 1;; ++tries) {
    auto workers = std::make_unique<ProcessWorld>(spec, body);
    try {
      workers->await_marks("running", Deadline::after(std::chrono::seconds(15)));
      return workers;
    } catch (const Timeout&) {
      if (tries == kTries || !is_late(*workers, spec.size)) throw;
    }
  }
}

// Reduces for ever; only a fault ends it.
void reduce_for_ever(Comm& comm, Algorithm algorithm) {
  std::vector<float> data(400'000, 1.0F);
  for (int round = 0;; ++round) {
    comm.all_reduce(buffer_of(data), {.algorithm = algorithm}).wait();
    if (round == 2) ProcessWorld::mark(comm.rank(), "running");
  }
}

TEST_P(ProcessFaults, AKilledWorkerIsPeerLostToAllOthersAtAnyInstant) {
  std::mt19937 random(7);
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing, Algorithm::kTree}) {
    for (int round = 0; round < 3; ++round) {
      const int size = 2 + round % 3;
      const int victim = static_cast<int>(random() % size);
      ProcessWorld workers({GetParam(), size, milliseconds(15'000)},
                           [&](Comm& comm) { reduce_for_ever(comm, algorithm); });
      workers.await_marks("running", Deadline::after(std::chrono::seconds(15)));
      std::this_thread::sleep_for(
          std::chrono::microseconds(random() % 20'000));  // the instant under test
      workers.signal(victim, SIGKILL);
      expect_survivors_end(workers, size, victim, ErrorKind::kPeerLost, milliseconds(5000));
    }
  }
}

TEST_P(ProcessFaults, AStoppedWorkerIsATimeoutToAllOthersAtTheDeadline) {
  for (const int size : {2, 3}) {
    const int victim = size - 1;
    ProcessWorld workers({GetParam(), size, milliseconds(1000)},
                         [&](Comm& comm) { reduce_for_ever(comm, Algorithm::kDirect); });
    workers.await_marks("running", Deadline::after(std::chrono::seconds(15)));
    workers.signal(victim, SIGSTOP);
    expect_survivors_end(workers, size, victim, ErrorKind::kTimeout, milliseconds(5000));
    // Woken, it finds that the world went on without it.
    workers.signal(victim, SIGCONT);
    const auto outcome = workers.wait(victim, Deadline::after(milliseconds(5000)));
    ASSERT_TRUE(outcome) << "the woken worker hangs";
    EXPECT_TRUE(outcome->kind) << "the woken worker must not believe that all is well";
  }
}

// From here on this process cannot start a thread: no memory has room for a stack of that size.
void start_no_more_threads() {
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, std::size_t{1} << 52);
  ::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
}

TEST_P(ProcessFaults, AWorkerThatCannotStartAThreadTellsTheOthersAtOnce) {
  const std::vector<std::pair<const char*, void (*)(Comm&, Buffer)>> calls{
      {"all_reduce", [](Comm& comm, Buffer data) { comm.all_reduce(data).wait(); }},
      {"send", [](Comm& comm, Buffer data) { comm.send(0, data).wait(); }},
      {"recv", [](Comm& comm, Buffer data) { comm.recv(0, data).wait(); }},
      {"try_recv", [](Comm& comm, Buffer data) { comm.try_recv(0, data); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    ProcessWorld workers({GetParam(), 2, milliseconds(60'000)}, [call = call](Comm& comm) {
      std::vector<float> data(400'000, 1.0F);  // so long that it needs a thread in any case
      if (comm.rank() == 0) return comm.all_reduce(buffer_of(data)).wait();
      start_no_more_threads();
      try {
        call(comm, buffer_of(data));
      } catch (const Unavailable&) {
        std::this_thread::sleep_for(std::chrono::seconds(60));  // its death tells nobody
      }
    });
    const auto other = workers.wait(0, Deadline::after(std::chrono::seconds(15)));
    ASSERT_TRUE(other) << "rank 0 hangs";
    EXPECT_EQ(other->kind, ErrorKind::kUnavailable) << other->text;
    EXPECT_THAT(other->ranks, ::testing::ElementsAre(1)) << other->text;
    EXPECT_THAT(other->text, ::testing::HasSubstr("ulimit -u"));
  }
}

// One of the operations, with one length.
struct Doing {
  const char* name;
  std::size_t count;
  Work (*start)(Comm&, Buffer);
  bool shared = true;  // in memory of Comm::share, where the engine has any
};

// Messages in a ring of workers.
Work pass_on(Comm& comm, Buffer data) {
  const int next = (comm.rank() + 1) % comm.size();
  const int before = (comm.rank() + comm.size() - 1) % comm.size();
  const Buffer half = data.slice(0, data.count / 2);
  Work sent = comm.send(next, half);
  comm.recv(before, data.slice(data.count / 2, data.count / 2)).wait();
  return sent;
}

// From one half of the memory to the other.
Work exchange_slices(Comm& comm, Buffer data) {
  const std::size_t workers = static_cast<std::size_t>(comm.size());
  const std::size_t count = data.count / 2 / workers * workers;
  return comm.all_to_all(data.slice(0, count), data.slice(count, count));
}

std::vector<Doing> everything() {
  std::vector<Doing> all;
  for (const std::size_t count : {std::size_t{64}, std::size_t{500'000}}) {
    all.push_back({"all_reduce", count, [](Comm& c, Buffer b) { return c.all_reduce(b); }});
    all.push_back({"reduce_scatter", count, [](Comm& c, Buffer b) { return c.reduce_scatter(b); }});
    all.push_back({"all_gather", count, [](Comm& c, Buffer b) { return c.all_gather(b); }});
    all.push_back({"all_to_all", count, exchange_slices});
    all.push_back(
        {"broadcast", count, [](Comm& c, Buffer b) { return c.broadcast(b, c.size() - 1); }});
    all.push_back({"messages", count, pass_on});
  }
  // Short enough for the call, if all have come; too long for a card.
  all.push_back({"all_reduce of private memory", 20'000,
                 [](Comm& c, Buffer b) { return c.all_reduce(b); }, false});
  all.push_back({"all_reduce of private memory", 4000,
                 [](Comm& c, Buffer b) { return c.all_reduce(b, {.algorithm = Algorithm::kRing}); },
                 false});
  all.push_back({"barrier", 0, [](Comm& c, Buffer) { return c.barrier(); }});
  return all;
}

void do_for_ever(Comm& comm, const Doing& doing) {
  const auto arena = doing.shared ? comm.share(doing.count * sizeof(float)) : nullptr;
  std::vector<float> own(arena ? 0 : doing.count, 1.0F);
  const Buffer data{arena ? static_cast<void*>(arena->data()) : own.data(), doing.count,
                    DType::kFloat32};
  for (int round = 0;; ++round) {
    doing.start(comm, data).wait();
    if (doing.count > 0 && doing.name == std::string("broadcast"))
      comm.barrier().wait();  // a root may run ahead
    if (round == 2) ProcessWorld::mark(comm.rank(), "running");
  }
}

TEST_P(ProcessFaults, AnyOperationOfAnyWorldEndsWhenAWorkerIsKilled) {
  for (const int size : {2, 3, 4}) {
    for (const Doing& doing : everything()) {
      for (const int delay_ms : kSlowBuild ? std::vector{5} : std::vector{0, 5, 50}) {
        SCOPED_TRACE(std::string(doing.name) + " of " + std::to_string(doing.count) + ", " +
                     std::to_string(size) + " workers, after " + std::to_string(delay_ms) + " ms");
        const int victim = delay_ms % size;
        ProcessWorld workers({GetParam(), size, milliseconds(15'000)},
                             [&](Comm& comm) { do_for_ever(comm, doing); });
        workers.await_marks("running", Deadline::after(std::chrono::seconds(15)));
        std::this_thread::sleep_for(milliseconds(delay_ms));  // the instant under test
        workers.signal(victim, SIGKILL);
        expect_survivors_end(workers, size, victim, ErrorKind::kPeerLost, milliseconds(5000));
      }
    }
  }
}

void expect_end_when_stopped(const std::string& engine, const Doing& doing, int size,
                             int delay_ms) {
  SCOPED_TRACE(std::string(doing.name) + " of " + std::to_string(doing.count) + ", " +
               std::to_string(size) + " workers, after " + std::to_string(delay_ms) + " ms");
  const auto workers = running_world({engine, size, milliseconds(500)},
                                     [&](Comm& comm) { do_for_ever(comm, doing); });
  std::this_thread::sleep_for(milliseconds(delay_ms));  // the instant under test
  workers->signal(1, SIGSTOP);
  expect_survivors_end(*workers, size, 1, ErrorKind::kTimeout, milliseconds(5000));
}

TEST_P(ProcessFaults, AnyOperationEndsAtTheDeadlineWhenAWorkerIsStopped) {
  for (const Doing& doing : everything())
    expect_end_when_stopped(GetParam(), doing, doing.count > 1000 ? 3 : 2, 0);
}

// Each takes its deadline: two minutes in all. `make test-full` runs it.
TEST_P(ProcessFaults, AnyOperationOfAnyWorldEndsAtTheDeadlineWhenAWorkerIsStoppedAtAnyInstant) {
  if (!full()) GTEST_SKIP() << "set LOCKSTEP_TEST_FULL";
  for (const int size : {2, 3, 4}) {
    for (const Doing& doing : everything()) {
      for (const int delay_ms : {0, 5, 50})
        expect_end_when_stopped(GetParam(), doing, size, delay_ms);
    }
  }
}

// A signal at a random time finds a worker where it spends its time, which is in few places. After a random number of
// steps it finds it at any instruction: between two words of shared memory that belong together, say.
void signal_after_steps(const ProcessWorld& workers, int victim, int signal, int steps) {
  Stepper stepper(workers.process(victim));
  for (int i = 0; i < steps; ++i) stepper.step();
  stepper.release(signal);
  workers.signal(victim, signal);  // where nobody may trace
}

// Every operation, `rounds` times, until one of some workers gets the signal in the middle of it.
void expect_end_after_any_instruction(int signal, ErrorKind kind, milliseconds timeout,
                                      int rounds) {
  constexpr unsigned kMostSteps = 5000;  // a few operations
  std::random_device seed;
  std::mt19937 random(seed());
  for (int round = 0; round < rounds; ++round) {
    for (const Doing& doing : everything()) {
      const int size = 2 + static_cast<int>(random() % 3);
      const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
      const int steps = static_cast<int>(random() % kMostSteps);
      SCOPED_TRACE(std::string(doing.name) + " of " + std::to_string(doing.count) + ", " +
                   std::to_string(size) + " workers; rank " + std::to_string(victim) + " after " +
                   std::to_string(steps) + " instructions");
      const auto workers =
          running_world({"shm", size, timeout}, [&](Comm& comm) { do_for_ever(comm, doing); });
      signal_after_steps(*workers, victim, signal, steps);
      expect_survivors_end(*workers, size, victim, kind, milliseconds(5000));
    }
  }
}

TEST(ShmFaults, AnyOperationEndsWhenAWorkerIsKilledAfterAnyInstruction) {
  expect_end_after_any_instruction(SIGKILL, ErrorKind::kPeerLost, milliseconds(15'000),
                                   full()       ? 200
                                   : kSlowBuild ? 1
                                                : 3);
}

TEST(ShmFaults, AnyOperationEndsAtTheDeadlineWhenAWorkerIsStoppedAfterAnyInstruction) {
  if (kSlowBuild)
    GTEST_SKIP() << "it waits for its deadlines; a sanitizer sees as much of the one above";
  expect_end_after_any_instruction(SIGSTOP, ErrorKind::kTimeout, milliseconds(500),
                                   full() ? 20 : 1);
}

// Connects with few descriptors left for `victim` once it knows the others' sockets. When it fails it lives on until
// `over` is closed elsewhere, so that its death tells nobody.
void form_with_few_descriptors(Bootstrap& inner, int victim, int free, base::Pipe& over) {
  FewAfterwards few(inner, free);
  Bootstrap& bootstrap = inner.rank() == victim ? static_cast<Bootstrap&>(few) : inner;
  try {
    connect("shm", bootstrap, {.timeout = milliseconds(60'000)}).barrier().wait();
  } catch (const Error&) {
    over.write.reset();
    if (inner.rank() == victim)
      base::wait_ready(over.read.get(), POLLIN, Deadline::after(std::chrono::seconds(60)));
    throw;
  }
}

// The others have its memory by then: it fails while they wait for it there, or when they believe that the world has
// formed.
TEST(ShmFaults, AWorkerThatRunsOutOfDescriptorsWhileTheWorldFormsTellsTheOthersAtOnce) {
  for (const int size : {2, 3}) {
    const int victim = size - 1;
    const int to_share = victim + 2;  // sockets, a descriptor that comes through one, its copy
    for (int free = to_share; free <= 8; ++free) {
      SCOPED_TRACE(std::to_string(size) + " workers, " + std::to_string(free) + " descriptors");
      base::Pipe over = base::make_pipe();
      ProcessWorld workers(size, [&](Bootstrap& bootstrap) {
        form_with_few_descriptors(bootstrap, victim, free, over);
      });
      std::vector<Outcome> outcomes;
      for (int rank = 0; rank < size; ++rank) {
        if (rank == victim) over.write.reset();
        const auto outcome = workers.wait(rank, Deadline::after(std::chrono::seconds(15)));
        ASSERT_TRUE(outcome) << "rank " << rank << " hangs";
        outcomes.push_back(*outcome);
      }
      EXPECT_TRUE(outcomes[victim].kind || free > to_share) << "it has enough of them";
      for (const Outcome& outcome : outcomes) {
        EXPECT_EQ(outcome.kind.has_value(), outcomes[victim].kind.has_value()) << outcome.text;
        if (!outcome.kind) continue;
        EXPECT_EQ(outcome.kind, ErrorKind::kUnavailable) << outcome.text;
        EXPECT_THAT(outcome.ranks, ::testing::ElementsAre(victim)) << outcome.text;
        EXPECT_THAT(outcome.text, ::testing::HasSubstr("ulimit -n"));
      }
    }
  }
}

// How long after its death a worker was missed, by one that waits for it. Both read the same clock; the time of
// death is told in memory that they share.
std::chrono::nanoseconds time_to_notice() {
  using Clock = std::chrono::steady_clock;
  ProcessWorld workers({"shm", 2, milliseconds(15'000)}, [](Comm& comm) {
    const auto arena = comm.share(sizeof(Clock::rep));
    auto* const died = reinterpret_cast<Clock::rep*>(arena->of(1));
    comm.barrier().wait();
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(20));  // the other one sleeps by then
      *died = Clock::now().time_since_epoch().count();
      ::kill(::getpid(), SIGKILL);
    }
    try {
      comm.barrier().wait();
    } catch (const PeerLost&) {
      throw PeerLost(std::to_string(Clock::now().time_since_epoch().count() - *died));
    }
  });
  const auto outcome = workers.wait(0, Deadline::after(std::chrono::seconds(10)));
  if (!outcome || outcome->kind != ErrorKind::kPeerLost) return std::chrono::seconds(10);
  return Clock::duration(std::atoll(outcome->text.c_str()));
}

TEST(ShmFaults, AKilledWorkerIsMissedWithinTenMilliseconds) {
  // The least of some tries: a busy machine may take any one of them away.
  auto least = std::chrono::nanoseconds(std::chrono::seconds(10));
  for (int i = 0; i < 5; ++i) least = std::min(least, time_to_notice());
  RecordProperty("least_us", std::to_string(least.count() / 1000));
  EXPECT_LT(least, milliseconds(10));
}

// A child that leaves its copy of the Comm. How it ended; nothing when it did not, and was killed.
std::optional<int> leave_in_a_child(Comm& comm, milliseconds rest = milliseconds(50)) {
  std::this_thread::sleep_for(rest);  // threads of the Comm sleep by then, without locks
  const pid_t child = ::fork();
  if (child == 0) {
    static_cast<void>(Comm(std::move(comm)));
    ::_exit(0);
  }
  int status = 0;
  for (const auto deadline = Deadline::after(milliseconds(5000)); !deadline.expired();) {
    if (::waitpid(child, &status, WNOHANG) == child) return status;
    std::this_thread::sleep_for(milliseconds(1));  // waitpid has no deadline
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return std::nullopt;
}

void insist_on_leaving_in_a_child(Comm& comm) {
  const auto status = leave_in_a_child(comm);
  if (status != 0) {
    throw BadInput(status ? "the child crashed" : "the child hangs");
  }
}

void insist_on_sums(Comm& comm) {
  for (int round = 0; round < 5; ++round) {
    for (const std::size_t count : {std::size_t{10}, std::size_t{300'000}}) {
      std::vector<float> data(count, 1.0F);
      comm.all_reduce(buffer_of(data)).wait();
      if (data != std::vector<float>(count, static_cast<float>(comm.size())))
        throw BadInput("a sum is wrong");
    }
  }
}

void expect_all_to_return(ProcessWorld& workers, int size) {
  for (int rank = 0; rank < size; ++rank) {
    const auto outcome = workers.wait(rank, Deadline::after(std::chrono::seconds(20)));
    ASSERT_TRUE(outcome) << "rank " << rank << " hangs";
    EXPECT_FALSE(outcome->kind) << outcome->text;
    EXPECT_EQ(outcome->text, "") << "rank " << rank;
  }
}

// The link's own thread stands back for 10 ms after an operation: it sleeps in another place then.
TEST_P(ProcessFaults, AChildOfForkJustAfterAnOperationLeavesTheWorldAsItIs) {
  ProcessWorld workers({GetParam(), 2, milliseconds(15'000)}, [](Comm& comm) {
    std::vector<float> data(100'000, 1.0F);
    comm.all_reduce(buffer_of(data)).wait();
    const auto status = leave_in_a_child(comm, milliseconds(2));
    if (!status || *status != 0) throw BadInput("the child does not end");
    comm.barrier().wait();
  });
  for (int rank = 0; rank < 2; ++rank) {
    const auto outcome = workers.wait(rank, Deadline::after(std::chrono::seconds(15)));
    ASSERT_TRUE(outcome);
    EXPECT_FALSE(outcome->kind) << outcome->text;
  }
}

TEST_P(ProcessFaults, AChildOfForkThatLeavesItsCopyOfACommLeavesTheWorldAsItIs) {
  ProcessWorld workers({GetParam(), 3, milliseconds(15'000)}, [](Comm& comm) {
    if (comm.rank() == 1) insist_on_leaving_in_a_child(comm);
    insist_on_sums(comm);
    if (comm.rank() == 1) insist_on_leaving_in_a_child(comm);
    insist_on_sums(comm);
  });
  expect_all_to_return(workers, 3);
}

TEST_P(ProcessFaults, AChildOfForkInTheMiddleOfAnOperationDoesSoToo) {
  ProcessWorld workers({GetParam(), 2, milliseconds(15'000)}, [](Comm& comm) {
    std::vector<float> data(300'000, 1.0F);
    if (comm.rank() == 0) {
      comm.recv(1, {nullptr, 0, DType::kUInt8}).wait();
      comm.all_reduce(buffer_of(data)).wait();
    } else {
      const Work work = comm.all_reduce(buffer_of(data));
      insist_on_leaving_in_a_child(comm);
      comm.send(0, {nullptr, 0, DType::kUInt8}).wait();
      work.wait();
    }
    if (data != std::vector<float>(data.size(), 2.0F)) throw BadInput("a sum is wrong");
    insist_on_sums(comm);
  });
  expect_all_to_return(workers, 2);
}

std::vector<std::string> engines_between_processes() {
  std::vector<std::string> names = engines_in_one_process();
  // nccl moves memory of the host as shm does; what it does with GPUs has tests of its own.
  std::erase_if(names, [](const auto& name) { return name == "thread" || name == "nccl"; });
  names.emplace_back(kTcpTagged);
  return names;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProcessFaults);
INSTANTIATE_TEST_SUITE_P(Engine, ProcessFaults, ::testing::ValuesIn(engines_between_processes()),
                         [](const auto& engine) { return engine.param; });

}  // namespace
}  // namespace lockstep::testing
