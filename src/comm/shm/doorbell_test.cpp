#include "comm/shm/doorbell.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <thread>

#include "tests/support/slow_build.h"
#include "tests/support/stepper.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using Way = void (Doorbell::*)();

struct Unmap {
  template <typename T>
  void operator()(T* object) const {
    ::munmap(object, sizeof *object);
  }
};

// In memory that a child of fork() shares.
template <typename T>
std::unique_ptr<T, Unmap> shared() {
  void* memory =
      ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return std::unique_ptr<T, Unmap>(new (memory) T{});
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
    const auto bell = shared<Doorbell>();
    Asleep sleeper(*bell);
    (bell.get()->*how)();
    EXPECT_TRUE(sleeper.is_woken());
    EXPECT_EQ(bell->sleeping.load(), 0U);
  }
}

TEST(DoorbellTest, ABellThatWasRungBeforeLetsNobodySleep) {
  const auto bell = shared<Doorbell>();
  const std::uint32_t seen = bell->rung.load();
  bell->ring();
  const auto deadline = Deadline::after(milliseconds(2000));
  bell->sleep(seen, 0, deadline);
  EXPECT_FALSE(deadline.expired());
}

// What a process that rings shares with the one that steps through it.
struct Ringing {
  Doorbell bell;
  Word begun;
  Word done;
};

// A process that rings when it is told to.
class Ringer {
 public:
  Ringer(Ringing& ringing, Way how) : process_(::fork()) {
    if (process_ != 0) return;
    while (ringing.begun.load() == 0) ::usleep(500);  // it is stepped from here on
    (ringing.bell.*how)();
    ringing.done.store(1);
    ::_exit(0);
  }
  ~Ringer() { kill(); }
  Ringer(const Ringer&) = delete;
  Ringer& operator=(const Ringer&) = delete;

  pid_t process() const { return process_; }
  void kill() {
    if (process_ > 0) ::kill(process_, SIGKILL);
    if (process_ > 0) ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }

 private:
  pid_t process_;
};

// How many instructions ringing takes with a sleeper there; none if it cannot be stepped through here.
std::optional<int> length_of(Way how) {
  constexpr int kMost = 20'000;
  const auto ringing = shared<Ringing>();
  const Sleeper sleeper(ringing->bell);
  (ringing->bell.*how)();  // the child need not look for its functions
  const Ringer ringer(*ringing, how);
  testing::Stepper stepper(ringer.process());
  ringing->begun.store(1);
  for (int steps = 0; steps < kMost && stepper.held(); ++steps) {
    if (ringing->done.load() != 0) return steps;
    stepper.step();
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
      const auto ringing = shared<Ringing>();
      Ringer ringer(*ringing, how);
      Asleep sleeper(ringing->bell);
      testing::Stepper stepper(ringer.process());
      ringing->begun.store(1);
      for (int i = 0; i < steps; ++i) stepper.step();
      stepper.release(SIGKILL);
      ringer.kill();
      (ringing->bell.*how)();
      ASSERT_TRUE(sleeper.is_woken()) << "after " << steps << " instructions of the ringer";
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
