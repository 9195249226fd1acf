#include "comm/shm/doorbell.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <thread>

#include "tests/support/slow_build.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using Way = void (Doorbell::*)();

struct Unmap {
  void operator()(Doorbell* bell) const { ::munmap(bell, sizeof *bell); }
};

// In memory that a child of fork() shares.
std::unique_ptr<Doorbell, Unmap> shared_bell() {
  void* memory =
      ::mmap(nullptr, sizeof(Doorbell), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return std::unique_ptr<Doorbell, Unmap>(new (memory) Doorbell{});
}

// A thread that sleeps at a bell, and whether it was woken before its deadline.
class Asleep {
 public:
  explicit Asleep(Doorbell& bell)
      : thread_([this, &bell] {
          bell.sleep(bell.rung.load(), 0, deadline_);
          woken_ = !deadline_.expired();
        }) {
    while (bell.sleeping.load() == 0) std::this_thread::yield();
  }
  ~Asleep() {
    if (thread_.joinable()) thread_.join();
  }
  bool is_woken() {
    thread_.join();
    return woken_;
  }

 private:
  Deadline deadline_ = Deadline::after(milliseconds(2000));
  bool woken_ = false;
  std::thread thread_;
};

TEST(DoorbellTest, WhoeverRingsWakesTheSleeper) {
  for (const Way how : {&Doorbell::ring, &Doorbell::ring_sleepers}) {
    const auto bell = shared_bell();
    Asleep sleeper(*bell);
    ((*bell).*how)();
    EXPECT_TRUE(sleeper.is_woken());
    EXPECT_EQ(bell->sleeping.load(), 0U);
  }
}

TEST(DoorbellTest, ABellThatWasRungBeforeLetsNobodySleep) {
  const auto bell = shared_bell();
  const std::uint32_t seen = bell->rung.load();
  bell->ring();
  const auto deadline = Deadline::after(milliseconds(2000));
  bell->sleep(seen, 0, deadline);
  EXPECT_FALSE(deadline.expired());
}

// A process that rings, one instruction at a time.
class SteppedRinger {
 public:
  enum class State { kRinging, kDone, kForbidden };

  SteppedRinger(Doorbell& bell, Way how) : process_(::fork()) {
    if (process_ == 0) {
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(1);
      ::raise(SIGSTOP);
      (bell.*how)();
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    wait();
  }
  ~SteppedRinger() { kill(); }
  SteppedRinger(const SteppedRinger&) = delete;
  SteppedRinger& operator=(const SteppedRinger&) = delete;

  void step() {
    if (state_ != State::kRinging) return;
    ::ptrace(PTRACE_SINGLESTEP, process_, nullptr, nullptr);
    if (wait() == SIGSTOP) state_ = State::kDone;
  }
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  State state() const { return state_; }

 private:
  // The signal that it stopped at.
  int wait() {
    int status = 0;
    ::waitpid(process_, &status, 0);
    if (WIFSTOPPED(status)) return WSTOPSIG(status);
    process_ = -1;
    state_ = State::kForbidden;
    return 0;
  }

  pid_t process_;
  State state_ = State::kRinging;
};

// How many instructions ringing takes with a sleeper there; none if it cannot be stepped through: nobody may trace
// here, or the processor's atomic operations start again after every step.
std::optional<int> length_of(Way how) {
  constexpr int kMost = 20'000;
  const auto bell = shared_bell();
  const Sleeper sleeper(*bell);
  ((*bell).*how)();  // the child need not look for its functions
  SteppedRinger ringer(*bell, how);
  for (int steps = 0; steps < kMost; ++steps) {
    if (ringer.state() == SteppedRinger::State::kForbidden) return std::nullopt;
    if (ringer.state() == SteppedRinger::State::kDone) return steps;
    ringer.step();
  }
  return std::nullopt;
}

// What a ringer that was killed has left behind must not keep another one from waking the sleeper.
TEST(DoorbellTest, ARingerKilledAtAnyInstructionSilencesNoOther) {
  for (const Way how : {&Doorbell::ring, &Doorbell::ring_sleepers}) {
    const auto length = length_of(how);
    if (!length) GTEST_SKIP() << "a process cannot be stepped through here";
    const int stride = testing::kSlowBuild ? *length / 40 + 1 : 1;
    for (int steps = 0; steps < *length; steps += stride) {
      const auto bell = shared_bell();
      SteppedRinger ringer(*bell, how);
      Asleep sleeper(*bell);
      for (int i = 0; i < steps; ++i) ringer.step();
      ringer.kill();
      ((*bell).*how)();
      ASSERT_TRUE(sleeper.is_woken()) << "after " << steps << " instructions of the ringer";
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
