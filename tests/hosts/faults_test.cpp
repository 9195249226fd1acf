// A host that is cut off, stopped or gone: workers of other hosts name it soon, and nobody else.
#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/support/elements.h"
#include "tests/support/hosts.h"

namespace lockstep::testing {
namespace {

using bench::Hosts;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

enum class Fault { kCutAtSwitch, kCutAtHost, kStopped, kKilled, kPowerLost };

struct FaultCase {
  Fault fault;
  Placement placement;
  int victim = 0;     // the host
  bool talks = true;  // workers reduce all the time; else they wait for a message that never comes
};

void hit(const FaultCase& test, const Hosts& hosts, ProcessWorld& world) {
  const auto signal_all = [&](int number) {
    for (const int rank : test.placement.ranks_of(test.victim)) world.signal(rank, number);
  };
  if (test.fault == Fault::kCutAtHost) hosts.cut(test.victim, Hosts::End::kHost);
  if (test.fault == Fault::kCutAtSwitch || test.fault == Fault::kPowerLost) hosts.cut(test.victim);
  if (test.fault == Fault::kStopped) signal_all(SIGSTOP);
  if (test.fault == Fault::kKilled || test.fault == Fault::kPowerLost) signal_all(SIGKILL);
}

void reduce_until_it_fails(Comm& comm) {
  std::vector<float> data(10'000, 1.0F);
  while (true) comm.all_reduce(buffer_of(data)).wait();
}

void wait_for_nothing(Comm& comm) {
  std::vector<float> data(10);
  comm.recv((comm.rank() + 1) % comm.size(), buffer_of(data)).wait();
}

// A worker of a healthy host blames workers of the victim only; one of a victim that was cut off
// cannot know better than to blame the others. All of them name an address.
void expect_right_blame(const FaultCase& test, int rank, const Outcome& outcome) {
  const int host = test.placement.host_of(rank);
  std::vector<::testing::Matcher<int>> blamed;
  std::vector<::testing::Matcher<std::string>> addresses;
  for (int other = 0; other < test.placement.hosts(); ++other) {
    const bool right = host == test.victim ? other != host : other == test.victim;
    if (!right) continue;
    for (const int its : test.placement.ranks_of(other)) blamed.emplace_back(its);
    addresses.emplace_back(HasSubstr(Hosts::address(other)));
  }
  EXPECT_EQ(outcome.kind, ErrorKind::kPeerLost) << outcome.text;
  EXPECT_THAT(outcome.ranks, Not(IsEmpty())) << outcome.text;
  EXPECT_THAT(outcome.ranks, Each(::testing::AnyOfArray(blamed)))
      << "rank " << rank << ": " << outcome.text;
  EXPECT_THAT(outcome.text, ::testing::AnyOfArray(addresses)) << "rank " << rank;
}

// The time from the fault until the last worker that could notice it has said so.
milliseconds time_to_name(const FaultCase& test) {
  const Hosts hosts({.count = test.placement.hosts()});
  const auto world = start_in(hosts, test.placement, [&](Comm& comm) {
    comm.barrier().wait();
    ProcessWorld::mark(comm.rank(), "formed");
    test.talks ? reduce_until_it_fails(comm) : wait_for_nothing(comm);
  });
  world->await_marks("formed", Deadline::after(seconds(30)));
  const auto begun = Deadline::Clock::now();
  hit(test, hosts, *world);
  const bool victims_notice = test.fault == Fault::kCutAtSwitch || test.fault == Fault::kCutAtHost;
  for (int rank = 0; rank < test.placement.size(); ++rank) {
    if (test.placement.host_of(rank) == test.victim && !victims_notice) continue;
    const auto outcome = world->wait(rank, Deadline::after(seconds(30)));
    if (!outcome) {
      ADD_FAILURE() << "rank " << rank << " hangs";
      break;
    }
    expect_right_blame(test, rank, *outcome);
  }
  return std::chrono::duration_cast<milliseconds>(Deadline::Clock::now() - begun);
}

constexpr milliseconds kSoon{1200};

class HostsFaults : public WithHosts {
 protected:
  // The time is that of a machine which does nothing else; a busy one has three tries.
  static void expect_named_soon(const FaultCase& test) {
    SCOPED_TRACE(test.placement.text());
    const milliseconds limit(4000);
    milliseconds best = time_to_name(test);
    for (int attempt = 1; attempt < 3 && best >= limit; ++attempt)
      best = std::min(best, time_to_name(test));
    EXPECT_LT(best, limit);
  }
  // The same with more hosts, other victims and workers that wait, if all tests are asked for.
  static void expect_named_everywhere(Fault fault) {
    expect_named_soon({fault, {{1, 3}}, 1, fault != Fault::kCutAtSwitch});
    if (!full_tests()) return;
    for (const bool talks : {true, false}) {
      expect_named_soon({fault, {{2, 2}}, 0, talks});
      expect_named_soon({fault, {{3, 1}}, 0, talks});
      expect_named_soon({fault, {{2, 1, 2}}, 1, talks});
      expect_named_soon({fault, {{2, 2, 2, 2}}, 3, talks});
    }
  }
};

TEST_F(HostsFaults, ACableThatIsPulledAtTheSwitchIsNamedWithinFourSeconds) {
  expect_named_everywhere(Fault::kCutAtSwitch);
}
TEST_F(HostsFaults, ACardThatGoesDownIsNamedWithinFourSeconds) {
  LOCKSTEP_FULL_TEST_ONLY();
  expect_named_everywhere(Fault::kCutAtHost);
}
TEST_F(HostsFaults, AStoppedHostIsNamedWithinFourSeconds) {
  expect_named_everywhere(Fault::kStopped);
}
TEST_F(HostsFaults, AHostWhoseWorkersAreKilledIsNamedWithinFourSeconds) {
  expect_named_everywhere(Fault::kKilled);
}
TEST_F(HostsFaults, AHostThatLosesPowerIsNamedWithinFourSeconds) {
  LOCKSTEP_FULL_TEST_ONLY();
  expect_named_everywhere(Fault::kPowerLost);
}

// Every core has far more to do than it can: workers that compute and say nothing are slow, not lost.
TEST_F(HostsFaults, BusyHostsAreNotLost) {
  LOCKSTEP_FULL_TEST_ONLY();
  const Placement placement{{2, 2}};
  const Hosts hosts({.count = 2});
  const ProcessWorld others(24, [](Bootstrap&) {
    while (Deadline::Clock::now().time_since_epoch().count() != 0) {  // never
    }
  });
  const auto world = start_in(hosts, placement, [](Comm& comm) {
    for (int round = 0; round < 3; ++round) {
      comm.barrier().wait();
      const auto until = Deadline::Clock::now() + seconds(8);
      while (Deadline::Clock::now() < until) {
      }
    }
    comm.barrier().wait();
  });
  expect_all_end_well(*world, placement.size(), Deadline::after(seconds(100)));
}

// Shorter than silence is allowed to be: nobody is lost, and nothing is wrong.
// Returns how long the line was cut.
milliseconds go_through_cut() {
  constexpr int kRounds = 40;
  const Placement placement{{2, 2}};
  const Hosts hosts({.count = 2});
  const auto world = start_in(hosts, placement, [&](Comm& comm) {
    comm.barrier().wait();
    ProcessWorld::mark(comm.rank(), "formed");
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> data(100'000, static_cast<float>(comm.rank() + round));
      comm.all_reduce(buffer_of(data)).wait();
      const auto sum = static_cast<float>(6 + 4 * round);
      if (data != std::vector<float>(data.size(), sum)) throw Mismatch("wrong sum");
    }
  });
  world->await_marks("formed", Deadline::after(seconds(30)));
  const auto began = std::chrono::steady_clock::now();
  hosts.cut(1);
  std::this_thread::sleep_for(milliseconds(500));  // the cut under test
  hosts.mend(1);
  const auto took =
      std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - began);
  if (took < kSoon) expect_all_end_well(*world, placement.size(), Deadline::after(seconds(60)));
  return took;
}

// TCP sends again after 0.2, 0.6, 1.4 and 3 s: a line that is back before 1.4 s is used again in time. On a busy machine the
// command that mends it may come later, and then the cut was another one.
TEST_F(HostsFaults, ACutThatIsMendedSoonHarmsNothing) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    if (go_through_cut() < kSoon) return;
  }
  FAIL() << "no cut was mended within 1.2 s in five tries: is this machine overloaded?";
}

}  // namespace
}  // namespace lockstep::testing
