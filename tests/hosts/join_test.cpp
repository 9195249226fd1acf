// Workers that join by variables, over IPv4 and IPv6, while strangers do what they like.
#include <gmock/gmock.h>

#include "tests/support/elements.h"
#include "tests/support/intruders.h"
#include "tests/support/joined.h"

namespace lockstep::testing {
namespace {

using bench::Hosts;
using std::chrono::seconds;
using ::testing::HasSubstr;

class HostsJoin : public WithHosts {};

void reduce_right(World& world, int rounds) {
  const int size = world.size();
  for (int round = 0; round < rounds; ++round) {
    std::vector<float> data(round % 4 == 0 ? 30'000 : 100, static_cast<float>(world.rank() + 1));
    world.comm().all_reduce(buffer_of(data)).wait();
    const auto sum = static_cast<float>(size * (size + 1)) / 2;
    if (data != std::vector<float>(data.size(), sum)) throw Mismatch("wrong sum");
  }
}

TEST_F(HostsJoin, WorkersOfTwoHostsTakeTheEngineBetweenHosts) {
  const Placement placement{{2, 1}};
  const Hosts hosts({.count = 2});
  const SecretFile secret;
  const auto world =
      start_joined(hosts, placement, Hosts::address(0) + ":29400", secret, [](World& joined) {
        if (joined.comm().engine() != "tcp") throw Mismatch(joined.comm().engine());
        reduce_right(joined, 8);
      });
  expect_all_end_well(*world, placement.size(), Deadline::after(seconds(60)));
}

TEST_F(HostsJoin, RendezvousAndEngineWorkOverIpv6) {
  const Placement placement{{1, 2}};
  const Hosts hosts({.count = 2});
  if (!hosts.has_ipv6()) GTEST_SKIP() << "this kernel has no IPv6";
  const SecretFile secret;
  const auto world = start_joined(hosts, placement, "[" + Hosts::address6(0) + "]:29400", secret,
                                  [](World& joined) {
                                    joined.comm().barrier().wait();
                                    ProcessWorld::mark(joined.rank(), "formed");
                                    reduce_right(joined, 1'000'000);
                                  });
  world->await_marks("formed", Deadline::after(seconds(60)));
  world->signal(0, SIGKILL);
  for (const int rank : {1, 2}) {
    const auto outcome = world->wait(rank, Deadline::after(seconds(30)));
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->kind, ErrorKind::kPeerLost);
    EXPECT_EQ(outcome->ranks, std::vector<int>{0});
    EXPECT_THAT(outcome->text, HasSubstr(Hosts::address6(0)));
  }
}

// One job after the other under attack, while it forms and after; each must be right.
void expect_right_jobs(const Hosts& hosts, const Placement& placement, int jobs) {
  const SecretFile secret;
  for (int job = 0; job < jobs; ++job) {
    const auto world =
        start_joined(hosts, placement, Hosts::address(0) + ":29400", secret,
                     [](World& joined) { reduce_right(joined, full_tests() ? 300 : 60); });
    expect_all_end_well(*world, placement.size(), Deadline::after(seconds(60)));
  }
}

// The same until the intruders have come: on a busy machine a job may be over before that.
void expect_right_jobs_under(const Intruders& intruders, const Hosts& hosts,
                             const Placement& placement, int jobs) {
  const int before = intruders.connections();
  const Deadline deadline = Deadline::after(seconds(60));
  do {
    expect_right_jobs(hosts, placement, jobs);
  } while (intruders.connections() == before && !deadline.expired());
  EXPECT_GT(intruders.connections(), before);
}

TEST_F(HostsJoin, StrangersAtEveryPortDoNotHarmAJob) {
  const int jobs = full_tests() ? 20 : 1;
  const Placement placement{{2, 2}};
  const Hosts hosts({.count = 3});
  Intruders intruders(hosts, 2);
  expect_right_jobs(hosts, placement, 1);  // without trouble: what is said then is replayed later
  ASSERT_GT(intruders.recorded(), 0);
  for (const Manner manner : kManners) {
    SCOPED_TRACE(name(manner));
    intruders.attack(manner);
    expect_right_jobs_under(intruders, hosts, placement, jobs);
  }
  intruders.replay();
  expect_right_jobs_under(intruders, hosts, placement, jobs);
}

}  // namespace
}  // namespace lockstep::testing
