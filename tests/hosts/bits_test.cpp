// Workers in several hosts get the bits of workers that are threads of one process.
#include <gmock/gmock.h>

#include "tests/support/elements.h"
#include "tests/support/hosts.h"

namespace lockstep::testing {
namespace {

using bench::Hosts;
using std::chrono::seconds;

constexpr Algorithm kAlgorithms[] = {Algorithm::kAutomatic, Algorithm::kDirect,
                                     Algorithm::kHalvingDoubling, Algorithm::kTree,
                                     Algorithm::kRing};

// What a worker has after each operation, one after the other.
using Results = std::vector<float>;

// All operations of a test, on one worker.
Results reduce_all(Comm& comm, const std::vector<std::size_t>& counts) {
  Results all;
  for (const std::size_t count : counts) {
    const auto input =
        rough_elements<float>(count, static_cast<std::uint32_t>(100 * comm.rank() + 1));
    const auto keep = [&](const std::vector<float>& data) {
      all.insert(all.end(), data.begin(), data.end());
    };
    for (const Algorithm algorithm : kAlgorithms) {
      std::vector<float> data = input;
      comm.all_reduce(buffer_of(data), {.algorithm = algorithm}).wait();
      keep(data);
    }
    std::vector<float> data = input;
    comm.reduce_scatter(buffer_of(data)).wait();
    comm.all_gather(buffer_of(data)).wait();
    keep(data);
    comm.broadcast(buffer_of(data), comm.size() - 1).wait();
    keep(data);
  }
  return all;
}

// Of worker 0; in these operations all workers have the same.
Results of_threads(int size, const std::vector<std::size_t>& counts) {
  Results expected;
  run_all({.engine = "thread", .size = size}, [&](Comm& comm) {
    Results own = reduce_all(comm, counts);
    if (comm.rank() == 0) expected = std::move(own);
  });
  return expected;
}

class HostsBits : public WithHosts {
 protected:
  static void expect_bits_of_threads(const Placement& placement) {
    SCOPED_TRACE(placement.text());
    const std::vector<std::size_t> counts = {1, 1000, 70'001};
    const Results expected = of_threads(placement.size(), counts);
    const Hosts hosts({.count = placement.hosts()});
    const auto world = start_in(hosts, placement, [&](Comm& comm) {
      if (!same_bits(reduce_all(comm, counts), expected)) throw Mismatch("other bits");
    });
    expect_all_end_well(*world, placement.size(), Deadline::after(seconds(60)));
  }
};

TEST_F(HostsBits, TwoHostsOfTwoWorkersHaveTheBitsOfThreads) {
  expect_bits_of_threads({{2, 2}});
}

TEST_F(HostsBits, UnequalHostsHaveTheBitsOfThreads) {
  expect_bits_of_threads({{1, 3}});
}

TEST_F(HostsBits, ThreeHostsHaveTheBitsOfThreads) {
  expect_bits_of_threads({{1, 1, 1}});
}

TEST_F(HostsBits, UpToFourHostsOfUpToFourWorkersHaveTheBitsOfThreads) {
  LOCKSTEP_FULL_TEST_ONLY();
  for (int hosts = 2; hosts <= 4; ++hosts) {
    for (int each = 1; each <= 4; ++each)
      expect_bits_of_threads({std::vector<int>(static_cast<std::size_t>(hosts), each)});
  }
  for (const auto& unequal :
       {Placement{{3, 1}}, Placement{{4, 1}}, Placement{{1, 2, 3}}, Placement{{4, 2, 1}},
        Placement{{1, 1, 4}}, Placement{{2, 1, 2, 1}}, Placement{{1, 4, 2, 3}}})
    expect_bits_of_threads(unequal);
}

// A long message over a slow line: it travels in many frames, beside signs of life.
TEST_F(HostsBits, ALongReductionOverASlowLineIsRight) {
  constexpr std::size_t kCount = 2'000'000;
  const Placement placement{{2, 2}};
  const Hosts hosts({.count = 2, .rate = "200mbit"});
  const auto world = start_in(hosts, placement, [&](Comm& comm) {
    std::vector<float> data(kCount, static_cast<float>(comm.rank() + 1));
    comm.all_reduce(buffer_of(data)).wait();
    if (data != std::vector<float>(kCount, 10.0F)) throw Mismatch("wrong sum");
  });
  expect_all_end_well(*world, placement.size(), Deadline::after(seconds(60)));
}

}  // namespace
}  // namespace lockstep::testing
