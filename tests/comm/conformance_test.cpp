// What every engine must do. An engine is admitted by adding its name to the instantiation at the
// end.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/comm.h>

#include <thread>

#include "comm/engines.h"
#include "plan/tree.h"
#include "tests/comm/conformance.h"
#include "tests/support/all_to_all.h"
#include "tests/support/elements.h"
#include "tests/support/mpi_workers.h"
#include "tests/support/slow_build.h"
#include "tests/support/workers.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr Algorithm kBitStable[] = {Algorithm::kDirect, Algorithm::kHalvingDoubling,
                                    Algorithm::kTree};
constexpr Algorithm kAll[] = {Algorithm::kDirect, Algorithm::kHalvingDoubling, Algorithm::kTree,
                              Algorithm::kRing};

template <typename T>
void expect_tree_bits(const WorldSpec& spec, const std::vector<std::size_t>& counts) {
  run_all(spec, [&](Comm& comm) {
    for (const std::size_t count : counts) {
      const auto inputs = inputs_for<T>(comm.size(), count);
      const auto expected = tree_sum(inputs);
      for (const Algorithm algorithm : kBitStable) {
        auto data = inputs[comm.rank()];
        comm.all_reduce(buffer_of(data), {.algorithm = algorithm}).wait();
        EXPECT_TRUE(same_bits(data, expected)) << name(algorithm) << ' ' << name(dtype_of<T>())
                                               << " x" << count << " rank " << comm.rank();
      }
    }
  });
}

TEST_P(Conformance, AllReduceGivesTheBitsOfTheTreeForEveryWorldSize) {
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8}) {
    expect_tree_bits<float>(world(size), {0, 1, 3, 17, 1023, 5001});
  }
}

TEST_P(Conformance, AllReduceGivesTheBitsOfTheTreeForEveryType) {
  for (const int size : {2, 3, 4}) {
    const std::vector<std::size_t> counts{0, 1, 1025, 9999};
    expect_tree_bits<double>(world(size), counts);
    expect_tree_bits<Float16>(world(size), counts);
    expect_tree_bits<BFloat16>(world(size), counts);
    expect_tree_bits<std::int32_t>(world(size), counts);
    expect_tree_bits<std::int64_t>(world(size), counts);
    expect_tree_bits<std::uint8_t>(world(size), counts);
  }
}

TEST_P(Conformance, LongBuffersTravelInPiecesAndKeepTheBitsOfTheTree) {
  // A slice has more than one piece.
  if (kSlowBuild) return expect_tree_bits<float>(world(2), {2'200'001});
  for (const int size : {2, 3}) expect_tree_bits<float>(world(size), {6'000'001});
}

template <typename T>
void expect_scaled_bits(const WorldSpec& spec, std::size_t count, double factor) {
  run_all(spec, [&](Comm& comm) {
    // In the type of sums, so that the reference rounds once.
    const auto inputs = inputs_for<T>(comm.size(), count);
    std::vector<std::vector<Sum<T>>> wide;
    for (const auto& input : inputs) wide.emplace_back(input.begin(), input.end());
    const auto sums = tree_sum(wide);
    std::vector<T> expected;
    for (const Sum<T> sum : sums) expected.push_back(T(sum * static_cast<Sum<T>>(factor)));
    for (const Algorithm algorithm : kBitStable) {
      auto data = inputs[comm.rank()];
      comm.all_reduce(buffer_of(data), {.factor = factor, .algorithm = algorithm}).wait();
      EXPECT_TRUE(same_bits(data, expected)) << name(algorithm) << ' ' << name(dtype_of<T>());
    }
  });
}

TEST_P(Conformance, AFactorMultipliesTheSumBeforeItIsRounded) {
  for (const int size : {2, 3, 4}) {
    for (const std::size_t count : {5UL, 9999UL}) {
      expect_scaled_bits<float>(world(size), count, 1.0 / 3);
      expect_scaled_bits<double>(world(size), count, 1.0 / 3);
      expect_scaled_bits<Float16>(world(size), count, 1.0 / 3);
      expect_scaled_bits<BFloat16>(world(size), count, 1.0 / 3);
    }
  }
}

TEST_P(Conformance, RingSumsWholeNumbersExactlyAndGivesAllWorkersTheSameBits) {
  for (const int size : {2, 3, 5}) {
    const auto whole = inputs_for<std::int32_t>(size, 1001);
    const auto expected = tree_sum(whole);
    run_all(world(size), [&](Comm& comm) {
      auto data = whole[comm.rank()];
      comm.all_reduce(buffer_of(data), {.algorithm = Algorithm::kRing}).wait();
      EXPECT_EQ(data, expected);
      auto result = inputs_for<float>(size, 1001)[comm.rank()];
      comm.all_reduce(buffer_of(result), {.algorithm = Algorithm::kRing}).wait();
      auto of_rank_0 = result;
      comm.broadcast(buffer_of(of_rank_0), 0).wait();
      EXPECT_TRUE(same_bits(result, of_rank_0));
    });
  }
}

TEST_P(Conformance, LeastAndMostAreTakenElementByElement) {
  run_all(world(3), [&](Comm& comm) {
    const auto inputs = inputs_for<float>(comm.size(), 777);
    for (const Algorithm algorithm : kAll) {
      auto least = inputs[comm.rank()];
      auto most = inputs[comm.rank()];
      comm.all_reduce(buffer_of(least), {.op = ReduceOp::kMin, .algorithm = algorithm}).wait();
      comm.all_reduce(buffer_of(most), {.op = ReduceOp::kMax, .algorithm = algorithm}).wait();
      for (std::size_t i = 0; i < least.size(); ++i) {
        EXPECT_EQ(least[i], std::min({inputs[0][i], inputs[1][i], inputs[2][i]}));
        EXPECT_EQ(most[i], std::max({inputs[0][i], inputs[1][i], inputs[2][i]}));
      }
    }
  });
}

TEST_P(Conformance, ReducingShardsGivesTheSameBitsForEveryNumberOfWorkers) {
  constexpr std::size_t kCount = 2000;
  for (const int shards : {1, 3, 6, 8}) {
    const auto inputs = inputs_for<float>(shards, kCount);
    const auto expected = tree_sum(inputs);
    for (int size = 1; size <= std::min(shards, 5); ++size) {
      run_all(world(size), [&](Comm& comm) {
        for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kHalvingDoubling}) {
          std::vector<std::vector<float>> partials;
          const auto hosted = plan::hosted_shards(comm.rank(), size, shards);
          for (const auto& range : plan::held_partials(hosted, shards)) {
            partials.push_back(
                tree_sum<float>({inputs.begin() + range.begin, inputs.begin() + range.end}));
          }
          std::vector<Buffer> buffers;
          for (auto& partial : partials) buffers.push_back(buffer_of(partial));
          std::vector<float> result(kCount);
          const Work work =
              comm.reduce(buffers, shards, buffer_of(result), {.algorithm = algorithm});
          work.wait();
          EXPECT_TRUE(same_bits(result, expected))
              << shards << " shards on " << size << " workers: " << work.how();
        }
      });
    }
  }
}

TEST_P(Conformance, AFallBackIsKnownBeforeAndSaysWhatRanAndWhy) {
  run_all(world(3), [](Comm& comm) {
    std::vector<float> data(5);
    const Work work = comm.all_reduce(buffer_of(data), {.algorithm = Algorithm::kHalvingDoubling});
    work.wait();
    EXPECT_THAT(work.how(), HasSubstr("direct (asked for halving-doubling"));
    EXPECT_EQ(comm.runs(Algorithm::kHalvingDoubling, 3), Algorithm::kDirect);
    EXPECT_EQ(comm.runs(Algorithm::kTree, 3), Algorithm::kTree);
    EXPECT_EQ(comm.runs(Algorithm::kTree, 4), Algorithm::kDirect);
    const Work native = comm.all_reduce(buffer_of(data), {.algorithm = Algorithm::kNative});
    native.wait();
    EXPECT_EQ(comm.runs(Algorithm::kNative, 3) == Algorithm::kNative,
              native.how().find("direct") == std::string::npos);
  });
}

TEST_P(Conformance, ReduceScatterAndAllGatherFollowTheCounts) {
  for (const std::vector<std::size_t>& counts :
       std::vector<std::vector<std::size_t>>{{}, {0, 700, 301}, {1001, 0, 0}}) {
    run_all(world(3), [&](Comm& comm) {
      const auto inputs = inputs_for<float>(3, 1001);
      const auto expected = tree_sum(inputs);
      auto data = inputs[comm.rank()];
      comm.reduce_scatter(buffer_of(data), counts).wait();
      comm.all_gather(buffer_of(data), counts).wait();
      EXPECT_TRUE(same_bits(data, expected));
    });
  }
}

template <typename T>
void expect_slices(const WorldSpec& spec, const std::vector<std::size_t>& counts, bool even) {
  const AllToAll<T> all(spec.size, counts);
  run_all(spec, [&](Comm& comm) {
    auto data = all.data[comm.rank()];
    std::vector<T> result(all.results[comm.rank()].size());
    for (int round = 0; round < 2; ++round) {
      std::fill(result.begin(), result.end(), T(0));
      const Work work = comm.all_to_all(buffer_of(data), buffer_of(result),
                                        even ? std::vector<std::size_t>{} : counts);
      work.wait();
      EXPECT_TRUE(same_bits(result, all.results[comm.rank()]))
          << name(dtype_of<T>()) << ", " << counts[0] << " to itself, rank " << comm.rank()
          << " of " << spec.size << ' ' << work.how();
      EXPECT_TRUE(same_bits(data, all.data[comm.rank()])) << "data stay as they are";
    }
  });
}

TEST_P(Conformance, AllToAllBringsEachSliceFromItsSenderToItsReceiver) {
  for (const int size : {1, 2, 3, 4}) {
    for (const std::size_t count : {0UL, 1UL, 30UL, 1025UL, 70'001UL}) {
      const std::vector<std::size_t> even(static_cast<std::size_t>(size * size), count);
      expect_slices<float>(world(size), even, true);
      expect_slices<std::uint8_t>(world(size), uneven_counts(size, count), false);
    }
    expect_slices<double>(world(size), uneven_counts(size, 5001), false);
  }
}

// Ranks of a split are not those of the world.
TEST_P(Conformance, AllToAllOfASplitAndOfAChannelGoesByItsRanks) {
  for (const std::size_t count : {3UL, 9000UL}) {
    const auto counts = uneven_counts(3, count);
    const AllToAll<float> all(3, counts);
    run_all(world(4), [&](Comm& comm) {
      Comm part = comm.split(comm.rank() == 2 ? std::vector<int>{2} : std::vector<int>{3, 0, 1});
      if (comm.rank() == 2) return;
      Comm channel = part.channel(7);
      for (Comm* const each : {&part, &channel}) {
        auto data = all.data[each->rank()];
        std::vector<float> result(all.results[each->rank()].size());
        each->all_to_all(buffer_of(data), buffer_of(result), counts).wait();
        EXPECT_TRUE(same_bits(result, all.results[each->rank()])) << count;
      }
    });
  }
}

TEST_P(Conformance, SlicesOfAnAllToAllMayAllBeEmptyButSome) {
  for (const std::size_t count : {20UL, 9000UL}) {
    for (const std::vector<std::size_t>& counts : std::vector<std::vector<std::size_t>>{
             {0, 0, 0, 0, 0, 0, 0, 0, 0},
             {0, 0, count, 0, 0, 0, 0, 0, 0},                  // one sends, and one receives
             {count, 0, 0, 0, count + 1, 0, 0, 0, 2 * count},  // each to itself
             {0, 0, 0, count, 1, 7, 0, 0, 0}}) {               // one to all
      expect_slices<std::uint8_t>(world(3), counts, false);
    }
  }
}

TEST_P(Conformance, ReduceScatterRefusesWhatItCannotDoAndGoesOn) {
  for (const int size : {1, 2}) {
    run_all(world(size), [](Comm& comm) {
      std::vector<std::int32_t> data(2, 1);
      for (const Algorithm algorithm :
           {Algorithm::kHalvingDoubling, Algorithm::kRing, Algorithm::kTree, Algorithm::kNative}) {
        EXPECT_THROW(comm.reduce_scatter(buffer_of(data), {}, {.algorithm = algorithm}), BadInput);
      }
      for (const Algorithm algorithm : {Algorithm::kAutomatic, Algorithm::kDirect}) {
        data.assign(2, comm.rank() + 1);
        comm.reduce_scatter(buffer_of(data), {}, {.op = ReduceOp::kMax, .algorithm = algorithm})
            .wait();
        EXPECT_EQ(data[comm.rank()], comm.size());
      }
    });
  }
}

TEST_P(Conformance, BroadcastReachesEveryoneFromEveryRoot) {
  for (const int size : {2, 3, 5, 8}) {
    run_all(world(size), [](Comm& comm) {
      for (int root = 0; root < comm.size(); ++root) {
        for (const std::size_t count : {0UL, 1UL, 100'000UL}) {
          auto data = rough_elements<double>(count, static_cast<std::uint32_t>(comm.rank()));
          comm.broadcast(buffer_of(data), root).wait();
          EXPECT_TRUE(
              same_bits(data, rough_elements<double>(count, static_cast<std::uint32_t>(root))));
        }
      }
    });
  }
}

TEST_P(Conformance, NobodyPassesABarrierBeforeAllHaveReachedIt) {
  for (const int size : {2, 3, 7}) {
    Tally arrived;
    run_all(world(size), [&](Comm& comm) {
      for (int round = 1; round <= 20; ++round) {
        ++arrived;
        comm.barrier().wait();
        EXPECT_GE(arrived.load(), round * size);
      }
    });
  }
}

TEST_P(Conformance, ManyOperationsInFlightRunInOrder) {
  run_all(world(3), [](Comm& comm) {
    std::vector<std::vector<std::int64_t>> data;
    std::vector<Work> works;
    for (std::int64_t i = 0; i < 200; ++i)
      data.push_back(std::vector<std::int64_t>(i * 7 % 1500, i));
    for (std::size_t i = 0; i < data.size(); ++i) {
      works.push_back(comm.all_reduce(buffer_of(data[i]), {.algorithm = kAll[i % 4]}));
    }
    for (std::size_t i = data.size(); i-- > 0;) {
      works[i].wait();
      EXPECT_EQ(data[i],
                std::vector<std::int64_t>(data[i].size(), 3 * static_cast<std::int64_t>(i)));
    }
  });
}

// Often enough that some messages of the engine ask first.
TEST_P(Conformance, AnOperationThatItsCallerDoesNotWaitForServesTheOthers) {
  Tally ended;
  run_all(world(2), [&](Comm& comm) {
    std::vector<float> data(100, 1.0F);
    const auto deadline = Deadline::after(std::chrono::seconds(15));
    for (int round = 1; round <= 70; ++round) {
      const Work work = comm.all_reduce(buffer_of(data));
      while (comm.rank() == 0 && ended.load() < round && !deadline.expired())
        std::this_thread::yield();
      work.wait();
      if (comm.rank() == 1) ++ended;
    }
    EXPECT_FALSE(deadline.expired()) << "rank 1 waits until rank 0 does";
  });
}

// Workers that call at once, and others that have something queued, take different paths to the
// same messages.
TEST_P(Conformance, ShortOperationsMayWaitInTheQueueOfSomeWorkersOnly) {
  run_all(world(3), [](Comm& comm) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::int64_t> data(3 * 40, 1);
      std::vector<Work> works;
      for (std::size_t i = 0; i < 3; ++i) {
        const Algorithm asked =
            i == 1 && comm.rank() == 0 ? Algorithm::kHalvingDoubling : Algorithm::kAutomatic;
        works.push_back(comm.all_reduce(buffer_of(data).slice(i * 40, 40), {.algorithm = asked}));
        if (comm.rank() == static_cast<int>(i)) works.back().wait();
      }
      works.push_back(comm.barrier());
      for (const Work& work : works) work.wait();
      EXPECT_EQ(data, std::vector<std::int64_t>(data.size(), 3));
    }
  });
}

TEST_P(Conformance, ChannelsHaveAnOrderOfTheirOwn) {
  run_all(world(3), [](Comm& comm) {
    Comm first = comm.channel(1);
    Comm second = comm.channel(2);
    std::vector<float> a(3000, 1.0F);
    std::vector<float> b(5000, 10.0F);
    // The ranks disagree on which comes first: only separate orders let both complete.
    std::vector<Work> works;
    if (comm.rank() == 1) works.push_back(second.all_reduce(buffer_of(b)));
    works.push_back(first.all_reduce(buffer_of(a)));
    if (comm.rank() != 1) works.push_back(second.all_reduce(buffer_of(b)));
    for (const Work& work : works) work.wait();
    EXPECT_EQ(a[0], 3.0F);
    EXPECT_EQ(b[4999], 30.0F);
    EXPECT_THROW(comm.channel(1), BadInput);
  });
}

TEST_P(Conformance, SplitsWorkSideBySideAndNumberTheirRanksByTheList) {
  run_all(world(5), [](Comm& comm) {
    const bool even = comm.rank() % 2 == 0;
    Comm part = comm.split(even ? std::vector<int>{4, 2, 0} : std::vector<int>{1, 3});
    EXPECT_EQ(part.size(), even ? 3 : 2);
    EXPECT_EQ(part.rank(), even ? (4 - comm.rank()) / 2 : comm.rank() / 2);
    std::vector<std::int32_t> data{comm.rank()};
    part.all_reduce(buffer_of(data)).wait();
    EXPECT_EQ(data[0], even ? 6 : 4);
    std::vector<std::int32_t> root{comm.rank()};
    part.broadcast(buffer_of(root), 0).wait();
    EXPECT_EQ(root[0], even ? 4 : 1);
    comm.barrier().wait();
  });
}

TEST_P(Conformance, MessagesArriveInOrderAndCrossingOnesDoNotBlockEachOther) {
  run_all(world(3), [](Comm& comm) {
    const int next = (comm.rank() + 1) % 3;
    const int before = (comm.rank() + 2) % 3;
    std::vector<std::vector<std::int32_t>> out;
    std::vector<std::vector<std::int32_t>> in(20);
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i)
      out.push_back(std::vector<std::int32_t>(i * 9973, comm.rank() * 100 + i));
    for (int i = 0; i < 20; ++i) works.push_back(comm.send(next, buffer_of(out[i])));
    for (int i = 0; i < 20; ++i) {
      in[i].resize(i * 9973);
      works.push_back(comm.recv(before, buffer_of(in[i])));
    }
    for (const Work& work : works) work.wait();
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(in[i], std::vector<std::int32_t>(i * 9973, before * 100 + i));
    }
  });
}

// More than are under way at once, and than travel without asking, in number and in bytes.
TEST_P(Conformance, MessagesThatAreAllSentBeforeTheFirstIsReceivedArriveInOrder) {
  WorldSpec spec = world(2);
  if (spec.engine == kTcpHosts) spec.hosts = {0, 1};
  run_all(spec, [](Comm& comm) {
    constexpr int kMessages = 150;
    const auto size_of_message = [](int i) { return i % 10 == 9 ? 200'000 : 3000 + i; };
    std::vector<std::vector<std::int32_t>> data;
    std::vector<Work> works;
    for (int i = 0; i < kMessages; ++i)
      data.emplace_back(size_of_message(i), comm.rank() == 0 ? i : -1);
    if (comm.rank() == 0)
      for (auto& values : data) works.push_back(comm.send(1, buffer_of(values)));
    comm.barrier().wait();
    if (comm.rank() == 1)
      for (auto& values : data) works.push_back(comm.recv(0, buffer_of(values)));
    for (const Work& work : works) work.wait();
    for (int i = 0; i < kMessages; ++i)
      EXPECT_EQ(data[i], std::vector<std::int32_t>(size_of_message(i), i));
  });
}

TEST_P(Conformance, TryRecvNeverBlocksAndTakesMessagesInOrder) {
  run_all(world(2), [](Comm& comm) {
    if (comm.rank() == 0) {
      std::vector<double> value{0};
      EXPECT_FALSE(comm.try_recv(1, buffer_of(value)));
      comm.barrier().wait();
      for (int expected = 1; expected <= 100; ++expected) {
        const auto deadline = Deadline::after(std::chrono::seconds(10));
        while (!comm.try_recv(1, buffer_of(value))) {
          ASSERT_FALSE(deadline.expired());
          std::this_thread::yield();
        }
        EXPECT_EQ(value[0], expected);
      }
      EXPECT_THROW(comm.recv(1, buffer_of(value)).wait(), BadInput);
    } else {
      comm.barrier().wait();
      std::vector<std::vector<double>> values;
      std::vector<Work> works;
      for (int i = 1; i <= 100; ++i) values.push_back({static_cast<double>(i)});
      for (auto& value : values) works.push_back(comm.send(0, buffer_of(value)));
      for (const Work& work : works) work.wait();
    }
    comm.barrier().wait();
  });
}

TEST_P(Conformance, AWorldOfOneNeedsNoBranch) {
  run_all(world(1), [](Comm& comm) {
    std::vector<float> data{1, 2, 3};
    comm.all_reduce(buffer_of(data)).wait();
    comm.reduce_scatter(buffer_of(data)).wait();
    comm.all_gather(buffer_of(data)).wait();
    comm.broadcast(buffer_of(data), 0).wait();
    std::vector<float> result(3);
    comm.all_to_all(buffer_of(data), buffer_of(result), {3}).wait();
    EXPECT_EQ(result, data);
    comm.barrier().wait();
    comm.channel(3).barrier().wait();
    comm.split({0}).all_reduce(buffer_of(data)).wait();
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree, Algorithm::kNative}) {
      comm.all_reduce(buffer_of(data), {.algorithm = algorithm}).wait();
      comm.reduce({buffer_of(data)}, 1, buffer_of(data), {.algorithm = algorithm}).wait();
    }
    EXPECT_EQ(data, (std::vector<float>{1, 2, 3}));
  });
}

// Failure.

std::vector<std::string> built_engines() {
  std::vector<std::string> names = engines_in_one_process();
  names.emplace_back(kTcpTagged);
  names.emplace_back(kTcpHosts);
  for (const std::string& engine : mpi_engines()) names.push_back(engine);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Engine, Conformance, ::testing::ValuesIn(built_engines()),
                         [](const auto& engine) { return engine.param; });

TEST(Engines, AnUnknownNameIsBadInputThatListsTheKnownOnes) {
  LocalBootstrap bootstrap(std::make_shared<LocalStore>(), "x", 0, 1);
  try {
    connect("carrier-pigeon", bootstrap);
    FAIL();
  } catch (const BadInput& error) {
    EXPECT_THAT(error.what(), HasSubstr("engines are thread, shm, tcp"));
  }
}

}  // namespace
}  // namespace lockstep::testing
