// Lines between hosts that are slow, lossy or change bits; and whether a rate is what was asked for.
#include <gmock/gmock.h>

#include "tests/support/elements.h"
#include "tests/support/hosts.h"
#include "tests/support/line.h"

namespace lockstep::testing {
namespace {

using bench::Hosts;
using bench::LineKind;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

class HostsLine : public WithHosts {};

void reduce_some(Comm& comm, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    std::vector<float> data(round % 2 == 0 ? 100 : 60'000, static_cast<float>(comm.rank() + 1));
    comm.all_reduce(buffer_of(data)).wait();
    const auto sum = static_cast<float>(comm.size() * (comm.size() + 1)) / 2;
    if (data != std::vector<float>(data.size(), sum)) throw Mismatch("wrong sum");
  }
}

TEST_F(HostsLine, ALineThatIsSlowAndLosesPacketsHarmsNothing) {
  const Placement placement{{2, 1}};
  const Hosts hosts({.count = 2, .lines = LineKind::kTaps});
  Line one(hosts, 0);
  Line other(hosts, 1);
  other.delay(milliseconds(5));
  other.lose_one_in(200);
  const auto world = start_in(hosts, placement, [](Comm& comm) { reduce_some(comm, 20); });
  expect_all_end_well(*world, placement.size(), Deadline::after(seconds(60)));
}

TEST_F(HostsLine, ALineThatFallsSilentIsNamed) {
  LOCKSTEP_FULL_TEST_ONLY();
  const Placement placement{{1, 1, 1}};
  const Hosts hosts({.count = 3, .lines = LineKind::kTaps});
  Line first(hosts, 0);
  Line second(hosts, 1);
  Line third(hosts, 2);
  const auto world = start_in(hosts, placement, [](Comm& comm) {
    comm.barrier().wait();
    ProcessWorld::mark(comm.rank(), "formed");
    reduce_some(comm, 1'000'000);
  });
  world->await_marks("formed", Deadline::after(seconds(30)));
  third.fall_silent();
  for (const int rank : {0, 1}) {
    const auto outcome = world->wait(rank, Deadline::after(seconds(20)));
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->kind, ErrorKind::kPeerLost);
    EXPECT_EQ(outcome->ranks, std::vector<int>{2}) << outcome->text;
    EXPECT_THAT(outcome->text, HasSubstr(Hosts::address(2)));
  }
}

// The first worker that ends, after one bit has changed. TCP throws away what it has already, such as
// a segment that was sent again: then another bit is changed.
std::pair<int, Outcome> first_to_notice(ProcessWorld& world, int size, Line& line) {
  const auto deadline = Deadline::after(seconds(30));
  for (int looks = 0; !deadline.expired(); ++looks) {
    if (looks % 20 == 0) line.flip_one_bit();
    for (int rank = 0; rank < size; ++rank) {
      const auto outcome = world.wait(rank, Deadline::after(milliseconds(10)));
      if (outcome) return {rank, *outcome};
    }
  }
  return {0, {{}, {}, "nobody noticed anything", {}}};
}

// TCP's checksum is right, so only the tags can tell.
TEST_F(HostsLine, EveryBitThatChangesOnTheWayIsNoticed) {
  const Placement placement{{1, 2}};
  const Hosts hosts({.count = 2, .lines = LineKind::kTaps});
  Line one(hosts, 0);
  Line other(hosts, 1);
  const int times = full_tests() ? 100 : 4;
  for (int flip = 1; flip <= times; ++flip) {
    SCOPED_TRACE(flip);
    const auto world = start_in(hosts, placement, [](Comm& comm) {
      comm.barrier().wait();
      ProcessWorld::mark(comm.rank(), "formed");
      reduce_some(comm, 1'000'000);
    });
    world->await_marks("formed", Deadline::after(seconds(30)));
    const auto [noticed, first] = first_to_notice(*world, placement.size(), other);
    std::string texts = first.text;
    for (int rank = 0; rank < placement.size(); ++rank) {
      if (rank == noticed) continue;
      const auto outcome = world->wait(rank, Deadline::after(seconds(20)));
      ASSERT_TRUE(outcome) << "rank " << rank << " hangs, though rank " << noticed
                           << " said: " << first.text;
      EXPECT_TRUE(outcome->kind);
      texts += "\n" + outcome->text;
    }
    EXPECT_GE(other.flips(), flip);
    EXPECT_THAT(texts, HasSubstr("changed on its way"));
    EXPECT_THAT(texts, Not(HasSubstr("wrong sum")));
  }
}

// A busy machine may be slower than the line, never faster.
TEST_F(HostsLine, ALineHasTheRateThatWasAskedFor) {
  constexpr double kBytes = 8e6;
  constexpr double kRate = 200e6 / 8;  // bytes a second
  const Placement placement{{1, 1}};
  const Hosts hosts({.count = 2, .rate = "200mbit"});
  double fastest = 1e9;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto world = start_in(hosts, placement, [&](Comm& comm) {
      std::vector<std::uint8_t> data(static_cast<std::size_t>(kBytes));
      comm.barrier().wait();
      comm.rank() == 0 ? comm.send(1, buffer_of(data)).wait()
                       : comm.recv(0, buffer_of(data)).wait();
      comm.barrier().wait();
    });
    for (int rank = 0; rank < 2; ++rank) {
      const auto outcome = world->wait(rank, Deadline::after(seconds(60)));
      ASSERT_TRUE(outcome && !outcome->kind);
      fastest = std::min(fastest, std::chrono::duration<double>(outcome->took).count());
    }
  }
  EXPECT_GT(fastest, 0.98 * kBytes / kRate) << "faster than the line";
  EXPECT_LT(fastest, 5 * kBytes / kRate) << "far slower than the line, even for a busy machine";
}

}  // namespace
}  // namespace lockstep::testing
