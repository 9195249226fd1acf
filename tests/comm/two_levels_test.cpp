// Workers on several hosts: memory that the workers of a host share, and the reduction in two
// levels. Here hosts are names; tests with network namespaces have real ones.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "comm/channel.h"
#include "comm/core/passing_link.h"
#include "comm/engines.h"
#include "flat/tree_sum.h"
#include "plan/hosts.h"
#include "plan/tree.h"
#include "tests/support/elements.h"
#include "tests/support/slow_build.h"
#include "tests/support/survivors.h"
#include "tests/support/workers.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// The value of element i in a partial that begins at this shard: sums of such values depend on the
// order in which they are added.
template <typename T>
T value(int shard, std::size_t i) {
  const auto bits = random_bits(static_cast<std::uint64_t>(shard) * 1'000'003 + i);
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(static_cast<double>(bits >> 11) * 0x1p-53 - 0.3);
  } else {
    return static_cast<T>(bits);
  }
}

struct Case {
  int shards = 0;
  std::vector<int> hosts;
  std::size_t count = 0;
  ReduceOptions rule = {};

  int workers() const { return static_cast<int>(hosts.size()); }
  std::string text() const {
    std::string all;
    for (const int host : hosts) all += fmt::format(" {}", host);
    return fmt::format("{} shards, hosts{}, {} elements", shards, all, count);
  }
};

// The same sum in one place, in the tree's order.
template <typename T>
std::vector<T> expected(const Case& what) {
  const auto plan = plan::plan_reduction(what.shards, what.workers());
  std::vector<std::vector<T>> partials;
  std::vector<const void*> operands;
  for (const plan::Operand& operand : plan.operands) {
    auto& values = partials.emplace_back(what.count);
    for (std::size_t i = 0; i < what.count; ++i) values[i] = value<T>(operand.range.begin, i);
  }
  for (const auto& values : partials) operands.push_back(values.data());
  std::vector<T> sum(what.count);
  flat::TreeSum(plan, {dtype_of<T>(), what.rule.op, what.rule.factor})
      .run(operands, sum.data(), what.count);
  return sum;
}

// `in_place`: the result is the first partial.
template <typename T>
void expect_sum(Comm& comm, const Case& what, const std::vector<T>& wanted, bool in_place) {
  const auto held =
      plan::held_partials(plan::hosted_shards(comm.rank(), comm.size(), what.shards), what.shards);
  const std::size_t bytes = std::max<std::size_t>(what.count * sizeof(T), 1);
  const std::size_t room = (bytes + 63) / 64 * 64;
  const auto arena = comm.share_on_host(room * (held.size() + 1));
  ASSERT_TRUE(arena);
  std::vector<Buffer> partials;
  for (std::size_t k = 0; k < held.size(); ++k) {
    auto* const at = reinterpret_cast<T*>(arena->data() + k * room);
    for (std::size_t i = 0; i < what.count; ++i) at[i] = value<T>(held[k].begin, i);
    partials.push_back({at, what.count, dtype_of<T>()});
  }
  const Buffer apart{arena->data() + held.size() * room, what.count, dtype_of<T>()};
  const Buffer result = in_place ? partials[0] : apart;
  ReduceOptions rule = what.rule;
  rule.algorithm = Algorithm::kTwoLevels;
  const Work work = comm.reduce(partials, what.shards, result, rule);
  work.wait();
  EXPECT_EQ(work.how(), "reduce: two-levels");
  const std::size_t sum_bytes = what.count * sizeof(T);
  EXPECT_TRUE(sum_bytes == 0 || std::memcmp(result.data, wanted.data(), sum_bytes) == 0)
      << what.text();
}

template <typename T>
void check(const Case& what) {
  const std::vector<T> wanted = expected<T>(what);
  WorldSpec spec{"tcp", what.workers()};
  spec.hosts = what.hosts;
  run_all(spec, [&](Comm& comm) {
    expect_sum(comm, what, wanted, true);
    expect_sum(comm, what, wanted, false);
  });
}

const std::vector<std::vector<int>>& placements() {
  static const std::vector<std::vector<int>> all{
      {0, 0, 1},          {0, 1, 1, 1},          {0, 0, 1, 1},    {0, 1, 0, 1},
      {0, 0, 1, 1, 2},    {0, 0, 0, 1, 1, 2, 2}, {0, 1, 2, 2, 0}, {0, 0, 1, 1, 2, 2, 3, 3},
      {0, 0, 0, 0, 1, 1},
  };
  return all;
}

TEST(TwoLevelReduction, HasTheBitsOfOneLevelForEveryPlacementAndNumberOfShards) {
  for (const std::vector<int>& hosts : placements()) {
    const int workers = static_cast<int>(hosts.size());
    for (const int shards : {workers, workers + 1, 2 * workers, 2 * workers + 3})
      check<float>({shards, hosts, 5'001, {.factor = 1.0 / 3}});
  }
}

// Some workers own nothing; some slices have many packets.
TEST(TwoLevelReduction, HasThemForEveryLengthTypeAndOperation) {
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{40}, std::size_t{1'000},
        std::size_t{kSlowBuild ? 300'000 : 1'500'000}})
    check<float>({9, {0, 0, 1, 1}, count});
  check<double>({8, {0, 1, 1, 1}, 100'003, {.factor = 0.125}});
  check<std::int64_t>({5, {0, 0, 1}, 10'000});
  check<float>({6, {0, 0, 1}, 10'000, {.op = ReduceOp::kMax}});
}

TEST(TwoLevelReduction, ManyInARowOverChannelsAndSplitsAreEachRight) {
  const Case what{8, {0, 0, 1, 1}, 20'000};
  const auto wanted = expected<float>(what);
  WorldSpec spec{kTcpHosts, 4};
  run_all(spec, [&](Comm& comm) {
    Comm other = comm.channel(7);
    for (int round = 0; round < 5; ++round) {
      expect_sum(comm, what, wanted, round % 2 == 0);
      expect_sum(other, what, wanted, false);
    }
    if (comm.rank() == 3) return;
    Comm three = comm.split({2, 0, 1});  // ranks 1 and 2 of it are on one host
    const Case less{5, {0, 1, 1}, 7'000};
    expect_sum(three, less, expected<float>(less), true);
  });
}

TEST(TwoLevelReduction, RunsOnlyWhereItGainsSomething) {
  run_all({kTcpHosts, 4}, [](Comm& comm) {
    EXPECT_EQ(comm.runs(Algorithm::kTwoLevels, 8), Algorithm::kTwoLevels);
    EXPECT_EQ(comm.runs(Algorithm::kAutomatic, 8), Algorithm::kDirect);
    std::vector<BFloat16> half(3'000, BFloat16(1.0F));
    const Work work = comm.all_reduce(buffer_of(half), {.algorithm = Algorithm::kTwoLevels});
    work.wait();
    EXPECT_THAT(work.how(), HasSubstr("direct"));
    // One worker of each host; and both of one.
    Comm apart = comm.split({comm.rank() % 2, comm.rank() % 2 + 2});
    EXPECT_EQ(apart.runs(Algorithm::kTwoLevels, 2), Algorithm::kDirect);
    EXPECT_FALSE(apart.share_on_host(100));
    Comm here = comm.split({comm.rank() / 2 * 2, comm.rank() / 2 * 2 + 1});
    EXPECT_EQ(here.runs(Algorithm::kTwoLevels, 2), Algorithm::kDirect);
    EXPECT_TRUE(here.share(100)) << "workers of one host share memory";
  });
  for (const std::string engine : {"thread", "shm", "tcp"}) {
    run_all({engine, 2}, [](Comm& comm) {
      EXPECT_EQ(comm.runs(Algorithm::kTwoLevels, 2), Algorithm::kDirect);
      EXPECT_FALSE(comm.share_on_host(100));
    });
  }
}

TEST(TwoLevelReduction, OfMemoryThatTheHostDoesNotShareIsBadInputAndDoesNoHarm) {
  run_all({kTcpHosts, 4}, [](Comm& comm) {
    std::vector<float> own(5'000, 1.0F);
    try {
      comm.all_reduce(buffer_of(own), {.algorithm = Algorithm::kTwoLevels}).wait();
      ADD_FAILURE() << "it ran";
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("share_on_host()"));
    }
    comm.all_reduce(buffer_of(own)).wait();
    EXPECT_EQ(own[4'999], 4.0F);
  });
}

TEST(TwoLevelReduction, WorkersThatReduceDifferentlyAreToldSo) {
  for (const int odd : {1, 2}) {  // beside rank 0, and on the other host
    const auto outcomes = run_workers({kTcpHosts, 4}, [odd](Comm& comm) {
      const auto arena = comm.share_on_host(80'000);
      const std::size_t count = comm.rank() == odd ? 20'000 : 10'000;
      comm.all_reduce({arena->data(), count, DType::kFloat32}, {.algorithm = Algorithm::kTwoLevels})
          .wait();
    });
    for (const Outcome& outcome : outcomes)
      EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << outcome.text;
  }
}

TEST(TwoLevelReduction, AWorkerInAnotherOperationIsToldSoAtOnce) {
  for (const int odd : {0, 1, 2, 3}) {
    const auto outcomes = run_workers({kTcpHosts, 4}, [odd](Comm& comm) {
      const auto arena = comm.share_on_host(80'000);
      const Buffer data{arena->data(), 10'000, DType::kFloat32};
      comm.rank() == odd ? comm.barrier().wait()
                         : comm.all_reduce(data, {.algorithm = Algorithm::kTwoLevels}).wait();
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << outcome.text;
      EXPECT_LT(outcome.took, milliseconds(10'000));
    }
  }
}

// Some of one host and some of another are in one operation, the rest in another.
TEST(TwoLevelReduction, TwoLevelsAndOneLevelAreDifferentOperations) {
  const auto outcomes = run_workers({kTcpHosts, 4}, [](Comm& comm) {
    const auto arena = comm.share_on_host(80'000);
    const Buffer data{arena->data(), 10'000, DType::kFloat32};
    const auto how = comm.rank() % 2 == 0 ? Algorithm::kTwoLevels : Algorithm::kDirect;
    comm.all_reduce(data, {.algorithm = how}).wait();
  });
  for (const Outcome& outcome : outcomes)
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << outcome.text;
}

// Counts what goes to workers of other hosts, and what goes to those of this one.
class CountingLink : public comm::PassingLink {
 public:
  using PassingLink::PassingLink;
  std::unique_ptr<comm::Transfer> send(int peer, comm::Slot slot, const void* data,
                                       std::size_t bytes) override {
    const auto all = hosts();
    const bool here = all[static_cast<std::size_t>(peer)] == all[static_cast<std::size_t>(rank())];
    (here ? inside : outside) += bytes;
    return PassingLink::send(peer, slot, data, bytes);
  }
  std::atomic<std::size_t> inside{0};
  std::atomic<std::size_t> outside{0};
};

TEST(TwoLevelReduction, SendsEachByteAcrossTheNetworkOnceEachWay) {
  constexpr std::size_t kCount = 300'000;
  const std::vector<int> hosts{0, 0, 1,
                               1, 2, 2};  // 12 shards: four for each host, which are a node
  const auto store = std::make_shared<LocalStore>();
  std::vector<std::size_t> outside(hosts.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 6; ++rank) {
    threads.emplace_back([&, rank] {
      LocalBootstrap bootstrap(store, "counted", rank, 6);
      CommOptions options;
      options.host = fmt::to_string(hosts[static_cast<std::size_t>(rank)]);
      const auto link =
          std::make_shared<CountingLink>(comm::connect_link("tcp", bootstrap, options));
      Comm comm(comm::Channel::of_world(link, options));
      const auto arena = comm.share_on_host(kCount * sizeof(float));
      const Buffer data{arena->data(), kCount, DType::kFloat32};
      comm.barrier().wait();
      link->inside = 0;
      link->outside = 0;
      comm.reduce({data}, 12, data, {.algorithm = Algorithm::kTwoLevels}).wait();
      EXPECT_EQ(link->inside, comm::kHeaderBytes) << "on a host only a greeting is sent";
      outside[static_cast<std::size_t>(rank)] = link->outside;
      comm.barrier().wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto levels = plan::plan_two_levels(plan::plan_reduction(12, 6), hosts);
  const auto planned = plan::two_level_traffic(levels, kCount, sizeof(float));
  for (std::size_t host = 0; host < 3; ++host) {
    const std::size_t headers = 2 * 4 * comm::kHeaderBytes;  // two workers greet four
    const std::size_t sent = outside[2 * host] + outside[2 * host + 1] - headers;
    EXPECT_EQ(sent, planned[host].sent);
    const double least = 2.0 * 2 / 3 * kCount * sizeof(float);
    EXPECT_NEAR(static_cast<double>(sent), least, 0.001 * least);
  }
}

void reduce_for_ever(Comm& comm) {
  constexpr std::size_t kCount = 400'000;
  const auto arena = comm.share_on_host(kCount * sizeof(float));
  const Buffer data{arena->data(), kCount, DType::kFloat32};
  for (int round = 0;; ++round) {
    comm.all_reduce(data, {.factor = 0.25, .algorithm = Algorithm::kTwoLevels}).wait();
    if (round == 2) ProcessWorld::mark(comm.rank(), "running");
  }
}

TEST(TwoLevelReduction, EndsForAllWhenAWorkerIsKilledAtAnyInstant) {
  std::mt19937 random(11);
  for (int round = 0; round < (kSlowBuild ? 3 : 8); ++round) {
    const int victim = round % 4;
    WorldSpec spec{kTcpHosts, 4, milliseconds(15'000)};
    if (round >= 4) spec.hosts = {0, 1, 1, 1};  // rank 0 is alone on its host
    ProcessWorld workers(spec, reduce_for_ever);
    workers.await_marks("running", Deadline::after(std::chrono::seconds(15)));
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % 20'000));  // the instant under test
    workers.signal(victim, SIGKILL);
    expect_survivors_end(workers, 4, victim, ErrorKind::kPeerLost, milliseconds(5000));
  }
}

// Its neighbour waits at a board, the others for messages: all must name it.
TEST(TwoLevelReduction, EndsAtTheDeadlineForAllWhenAWorkerIsStopped) {
  for (const int victim : {0, 3}) {
    ProcessWorld workers({kTcpHosts, 4, milliseconds(1'000)}, reduce_for_ever);
    workers.await_marks("running", Deadline::after(std::chrono::seconds(15)));
    workers.signal(victim, SIGSTOP);
    expect_survivors_end(workers, 4, victim, ErrorKind::kTimeout, milliseconds(5000));
    workers.signal(victim, SIGCONT);
  }
}

}  // namespace
}  // namespace lockstep::testing
