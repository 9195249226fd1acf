// Worlds whose workers are processes in several hosts (bench/hosts/hosts.h).
#pragma once

#include <gtest/gtest.h>
#include <lockstep/comm.h>
#include <lockstep/errors.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "bench/hosts/hosts.h"
#include "tests/support/workers.h"

namespace lockstep::testing {

// LOCKSTEP_TEST_FULL: everything, not the short set.
inline bool full_tests() {
  return std::getenv("LOCKSTEP_TEST_FULL") != nullptr;
}
#define LOCKSTEP_FULL_TEST_ONLY() \
  if (!full_tests()) GTEST_SKIP() << "a long test: set LOCKSTEP_TEST_FULL to run it"

// How many workers each host has. Ranks are counted host by host.
struct Placement {
  std::vector<int> workers;

  int hosts() const { return static_cast<int>(workers.size()); }
  int size() const { return std::accumulate(workers.begin(), workers.end(), 0); }
  int first(int host) const { return std::accumulate(workers.begin(), workers.begin() + host, 0); }
  int host_of(int rank) const {
    int host = 0;
    while (rank >= first(host + 1)) ++host;
    return host;
  }
  std::vector<int> ranks_of(int host) const {
    std::vector<int> ranks(static_cast<std::size_t>(workers[static_cast<std::size_t>(host)]));
    std::iota(ranks.begin(), ranks.end(), first(host));
    return ranks;
  }
  std::string text() const {
    std::string all;
    for (const int count : workers) all += (all.empty() ? "" : "+") + std::to_string(count);
    return all;
  }
};

// Skips its cases where namespaces are not allowed. A case makes its own hosts.
class WithHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      const bench::Hosts probe({.count = 1, .rate = "1gbit"});
    } catch (const Unavailable& missing) {
      GTEST_SKIP() << missing.what();
    }
  }
};

inline void enter_or_throw(const bench::Hosts& hosts, int host) {
  if (!hosts.enter(host)) throw Unavailable("cannot enter " + bench::Hosts::name(host));
}

// Workers over the engine between hosts. Keep `hosts` until all of them have been started.
inline std::unique_ptr<ProcessWorld> start_in(
    const bench::Hosts& hosts, const Placement& placement, const std::function<void(Comm&)>& body,
    std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000)) {
  return std::make_unique<ProcessWorld>(placement.size(), [=, &hosts](Bootstrap& bootstrap) {
    const int host = placement.host_of(bootstrap.rank());
    enter_or_throw(hosts, host);
    Comm comm = connect("tcp", bootstrap,
                        {.timeout = timeout, .interface_name = bench::Hosts::address(host)});
    body(comm);
  });
}

// Every worker returns, in time.
inline void expect_all_end_well(ProcessWorld& world, int size, Deadline deadline) {
  for (int rank = 0; rank < size; ++rank) {
    const auto outcome = world.wait(rank, deadline);
    ASSERT_TRUE(outcome) << "rank " << rank << " hangs";
    EXPECT_FALSE(outcome->kind) << "rank " << rank << ": " << outcome->text;
    EXPECT_EQ(outcome->text, "") << "rank " << rank;
  }
}

}  // namespace lockstep::testing
