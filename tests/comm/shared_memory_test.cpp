// Collectives on memory that the workers share: the bits of the tree again, and what happens when somebody does not
// keep its side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/comm.h>

#include "comm/group.h"
#include "plan/tree.h"
#include "tests/support/all_to_all.h"
#include "tests/support/elements.h"
#include "tests/support/slow_build.h"
#include "tests/support/workers.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::HasSubstr;

WorldSpec shm(int size, milliseconds timeout = milliseconds(20'000)) {
  return {"shm", size, timeout};
}

// Elements in a shared arena, not at its beginning.
template <typename T>
class Shared {
 public:
  Shared(Comm& comm, std::size_t most) : arena_(comm.share((most + kAhead) * sizeof(T))) {}

  Buffer set(const std::vector<T>& values, std::size_t ahead = kAhead) {
    at_ = reinterpret_cast<T*>(arena_->data()) + ahead;
    count_ = values.size();
    std::copy(values.begin(), values.end(), at_);
    return {at_, count_, dtype_of<T>()};
  }
  std::vector<T> values() const { return {at_, at_ + count_}; }

 private:
  static constexpr std::size_t kAhead = 77;
  std::shared_ptr<SharedArena> arena_;
  T* at_ = nullptr;
  std::size_t count_ = 0;
};

template <typename T>
void expect_tree_bits_in_shared_memory(int size, const std::vector<std::size_t>& counts) {
  run_all(shm(size), [&](Comm& comm) {
    Shared<T> data(comm, counts.back());
    for (const std::size_t count : counts) {
      const auto inputs = inputs_for<T>(size, count);
      // Every worker at an offset of its own.
      const Buffer buffer = data.set(inputs[comm.rank()], static_cast<std::size_t>(comm.rank()));
      comm.all_reduce(buffer).wait();
      EXPECT_TRUE(same_bits(data.values(), tree_sum(inputs)))
          << name(dtype_of<T>()) << " x" << count << " on " << size << " workers";
    }
  });
}

TEST(SharedMemory, AllReduceGivesTheBitsOfTheTreeForEveryWorldSizeAndType) {
  for (const int size : {2, 3, 4, 5, 7, 8})
    expect_tree_bits_in_shared_memory<float>(size, {3, 1024, 1025, 5001, 70'001});
  for (const int size : {2, 3}) {
    expect_tree_bits_in_shared_memory<double>(size, {513, 9999});
    expect_tree_bits_in_shared_memory<Float16>(size, {2049, 9999});
    expect_tree_bits_in_shared_memory<BFloat16>(size, {2049, 9999});
    expect_tree_bits_in_shared_memory<std::int32_t>(size, {9999});
    expect_tree_bits_in_shared_memory<std::uint8_t>(size, {4097, 9999});
  }
}

TEST(SharedMemory, ReducingShardsGivesTheSameBitsForEveryNumberOfWorkers) {
  constexpr std::size_t kCount = 3000;
  for (const int shards : {3, 6, 8}) {
    const auto inputs = inputs_for<float>(shards, kCount);
    const auto expected = tree_sum(inputs);
    for (int size = 2; size <= std::min(shards, 5); ++size) {
      run_all(shm(size), [&](Comm& comm) {
        const auto hosted = plan::hosted_shards(comm.rank(), size, shards);
        std::vector<Shared<float>> partials;
        std::vector<Buffer> buffers;
        for (const auto& range : plan::held_partials(hosted, shards)) {
          partials.emplace_back(comm, kCount);
          buffers.push_back(partials.back().set(
              tree_sum<float>({inputs.begin() + range.begin, inputs.begin() + range.end})));
        }
        // Workers hold different numbers of partials; all share the same number of arenas.
        for (std::size_t i = partials.size(); i < 4; ++i) partials.emplace_back(comm, 1);
        Shared<float> result(comm, kCount);
        comm.reduce(buffers, shards, result.set(std::vector<float>(kCount))).wait();
        EXPECT_TRUE(same_bits(result.values(), expected)) << shards << " on " << size;
      });
    }
  }
}

// As gradients in the next generation, where the last worker is new and makes its own.
TEST(SharedMemory, IsSharedAgainWithOthersAndKeepsItsValues) {
  constexpr std::size_t kCount = 5001;
  const auto inputs = inputs_for<float>(3, kCount);
  run_all(shm(3), [&](Comm& comm) {
    const auto put = [&](SharedArena& arena) {
      const auto& own = inputs[static_cast<std::size_t>(comm.rank())];
      std::copy(own.begin(), own.end(), reinterpret_cast<float*>(arena.data()));
    };
    auto before = comm.share(kCount * sizeof(float));
    put(*before);
    Comm next = comm.channel(1);
    const bool is_new = comm.rank() == 2;
    const auto after =
        is_new ? next.share(before->size()) : comm::Inside::share_again(next, before->own());
    if (is_new) put(*after);
    before.reset();
    next.barrier().wait();
    for (int rank = 0; rank < 3; ++rank) {
      const auto* const first = reinterpret_cast<const float*>(after->of(rank));
      EXPECT_TRUE(same_bits({first, first + kCount}, inputs[static_cast<std::size_t>(rank)]));
    }
    next.barrier().wait();  // before all_reduce() writes
    auto* const own = reinterpret_cast<float*>(after->data());
    next.all_reduce({own, kCount, DType::kFloat32}).wait();
    EXPECT_TRUE(same_bits({own, own + kCount}, tree_sum(inputs)));
  });
}

TEST(SharedMemory, TheOtherCollectivesGiveWhatTheyGiveElsewhere) {
  constexpr std::size_t kCount = 30'011;
  const std::vector<std::size_t> counts{11, 20'000, 10'000};
  const auto inputs = inputs_for<float>(3, kCount);
  run_all(shm(3), [&](Comm& comm) {
    Shared<float> data(comm, kCount);
    const Buffer buffer = data.set(inputs[comm.rank()]);
    comm.reduce_scatter(buffer, counts).wait();
    comm.all_gather(buffer, counts).wait();
    EXPECT_TRUE(same_bits(data.values(), tree_sum(inputs)));
    for (int root = 0; root < comm.size(); ++root) {
      comm.broadcast(data.set(inputs[comm.rank()]), root).wait();
      EXPECT_TRUE(same_bits(data.values(), inputs[root]));
    }
  });
}

// Some results are in memory of one worker, and one worker has nothing to give.
TEST(SharedMemory, AllToAllReadsTheOthersSlicesWhereTheyAre) {
  std::vector<std::size_t> silent = uneven_counts(4, 20'000);
  std::fill_n(silent.begin() + 8, 4, std::size_t{0});
  for (const auto& counts : {uneven_counts(4, 20'000), uneven_counts(4, 400'000), silent}) {
    const AllToAll<std::uint8_t> all(4, counts);
    run_all(shm(4), [&](Comm& comm) {
      const auto& expected = all.results[comm.rank()];
      Shared<std::uint8_t> data(comm, all.data[comm.rank()].size());
      Shared<std::uint8_t> shared_result(comm, expected.size());
      std::vector<std::uint8_t> own_result(expected.size());
      // Every worker at an offset of its own.
      const Buffer from = data.set(all.data[comm.rank()], static_cast<std::size_t>(comm.rank()));
      const Buffer to = shared_result.set(own_result);
      comm.all_to_all(from, comm.rank() == 1 ? buffer_of(own_result) : to, counts).wait();
      EXPECT_TRUE(same_bits(comm.rank() == 1 ? own_result : shared_result.values(), expected));
    });
  }
}

TEST(SharedMemory, AllToAllWithDataOutsideOfItGivesTheSame) {
  const auto counts = uneven_counts(3, 30'000);
  const AllToAll<float> all(3, counts);
  run_all(shm(3), [&](Comm& comm) {
    Shared<float> data(comm, 200'000);
    std::vector<float> own = all.data[comm.rank()];
    std::vector<float> result(all.results[comm.rank()].size());
    const Buffer from = comm.rank() == 1 ? buffer_of(own) : data.set(own);
    comm.all_to_all(from, buffer_of(result), counts).wait();
    EXPECT_TRUE(same_bits(result, all.results[comm.rank()]));
  });
}

// Short and long ones: whether they end in the call or are queued, and who comes first.
TEST(SharedMemory, APeerNeedNotWaitForACallerThatDoesNotWait) {
  run_all(shm(2), [&](Comm& comm) {
    Shared<float> data(comm, 300'000);
    float token = 0;
    for (int round = 0; round < 10; ++round) {
      for (const std::size_t count : {500UL, 20'000UL, 300'000UL}) {
        const auto inputs = inputs_for<float>(2, count);
        const Work sum = comm.all_reduce(data.set(inputs[comm.rank()]));
        if (comm.rank() == round % 2) {
          comm.recv(1 - comm.rank(), {&token, 1, DType::kFloat32}).wait();
        } else {
          sum.wait();
          comm.send(1 - comm.rank(), {&token, 1, DType::kFloat32}).wait();
        }
        sum.wait();
        EXPECT_TRUE(same_bits(data.values(), tree_sum(inputs))) << count;
      }
    }
  });
}

TEST(SharedMemory, ABufferOfOneWorkerOutsideOfItChangesNoBit) {
  const auto inputs = inputs_for<float>(3, 50'000);
  run_all(shm(3), [&](Comm& comm) {
    Shared<float> data(comm, 50'000);
    std::vector<float> own = inputs[comm.rank()];
    const Buffer buffer = comm.rank() == 1 ? buffer_of(own) : data.set(own);
    comm.all_reduce(buffer).wait();
    EXPECT_TRUE(same_bits(comm.rank() == 1 ? own : data.values(), tree_sum(inputs)));
  });
}

// A worker has room to copy one of them to shared memory, and not every worker copies the same one.
TEST(SharedMemory, BuffersOutsideOfItOnSeveralChannelsChangeNoBit) {
  const auto inputs = inputs_for<float>(3, 20'000);
  const auto expected = tree_sum(inputs);
  run_all(shm(3), [&](Comm& comm) {
    std::vector<Comm> channels;
    for (std::uint32_t id = 0; id < 3; ++id) channels.push_back(comm.channel(id));
    for (int round = 0; round < 10; ++round) {
      std::vector<std::vector<float>> data(channels.size(), inputs[comm.rank()]);
      std::vector<Work> sums;
      for (std::size_t i = 0; i < channels.size(); ++i) {
        const std::size_t at = (i + comm.rank()) % channels.size();
        sums.push_back(channels[at].all_reduce(buffer_of(data[at])));
      }
      for (const Work& sum : sums) sum.wait();
      for (const auto& one : data) EXPECT_TRUE(same_bits(one, expected));
    }
  });
}

// A short sum must not take its operand before the operation that writes it has ended.
TEST(SharedMemory, AnOperationSeesWhatTheOneBeforeItWrote) {
  constexpr std::size_t kLong = 3'000'000;
  constexpr std::size_t kShort = 20'000;
  run_all(shm(3), [](Comm& comm) {
    for (int turn = 0; turn < 10; ++turn) {
      std::vector<float> data(kLong, comm.rank() == 0 ? 5.0F : -1.0F);
      const Work told = comm.broadcast({data.data(), kLong, DType::kFloat32}, 0);
      const Work sum = comm.all_reduce({data.data() + kLong - kShort, kShort, DType::kFloat32});
      told.wait();
      sum.wait();
      EXPECT_EQ(data[kLong - 1], 15.0F);
      EXPECT_EQ(data[kLong - kShort], 15.0F);
      EXPECT_EQ(data[0], 5.0F);
    }
  });
}

TEST(SharedMemory, ChannelsAndSplitsUseWhatTheWorldHasShared) {
  const auto inputs = inputs_for<float>(4, 9000);
  run_all(shm(4), [&](Comm& comm) {
    Shared<float> data(comm, 9000);
    Comm channel = comm.channel(1);
    channel.all_reduce(data.set(inputs[comm.rank()])).wait();
    EXPECT_TRUE(same_bits(data.values(), tree_sum(inputs)));
    const int first = comm.rank() / 2 * 2;
    Comm pair = comm.split({first, first + 1});
    pair.all_reduce(data.set(inputs[comm.rank()])).wait();
    EXPECT_TRUE(same_bits(data.values(), tree_sum<float>({inputs[first], inputs[first + 1]})));
    Shared<float> of_pair(pair, 9000);
    pair.all_reduce(of_pair.set(inputs[comm.rank()])).wait();
    EXPECT_TRUE(same_bits(of_pair.values(), tree_sum<float>({inputs[first], inputs[first + 1]})));
  });
}

TEST(SharedMemory, TheWorldReducesWhatOnlyPairsOfItHaveShared) {
  constexpr std::size_t kCount = 9000;
  const auto inputs = inputs_for<float>(4, kCount);
  run_all(shm(4), [&](Comm& comm) {
    const int first = comm.rank() / 2 * 2;
    Comm pair = comm.split({first, first + 1});
    Shared<float> of_pair(pair, kCount);
    const Buffer buffer = of_pair.set(inputs[comm.rank()]);
    comm.all_reduce(buffer).wait();
    EXPECT_TRUE(same_bits(of_pair.values(), tree_sum(inputs)));
    of_pair.set(inputs[comm.rank()]);
    comm.reduce_scatter(buffer).wait();
    comm.all_gather(buffer).wait();
    EXPECT_TRUE(same_bits(of_pair.values(), tree_sum(inputs)));
    comm.broadcast(of_pair.set(inputs[comm.rank()]), 3).wait();
    EXPECT_TRUE(same_bits(of_pair.values(), inputs[3]));
    // Some in memory of the world, some in memory of a pair.
    Shared<float> of_world(comm, kCount);
    Shared<float>& data = comm.rank() == 2 ? of_pair : of_world;
    comm.all_reduce(data.set(inputs[comm.rank()])).wait();
    EXPECT_TRUE(same_bits(data.values(), tree_sum(inputs)));
  });
}

TEST(SharedMemory, EveryWorkerSeesWhatAnotherWritesInItsArena) {
  run_all(shm(3), [](Comm& comm) {
    const auto arena = comm.share(comm.rank() == 0 ? 100 : 0);
    ASSERT_EQ(arena->workers(), 3);
    EXPECT_GE(arena->size_of(0), 100U);
    arena->data()[7] = std::byte{static_cast<unsigned char>(40 + comm.rank())};
    comm.barrier().wait();
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(arena->of(rank)[7], std::byte{static_cast<unsigned char>(40 + rank)});
    comm.barrier().wait();
  });
}

TEST(SharedMemory, EnginesThatShareNoneSaySoAndAWorldOfOneHasItsOwn) {
  run_all({"thread", 2, milliseconds(20'000)},
          [](Comm& comm) { EXPECT_EQ(comm.share(100), nullptr); });
  Comm alone = connect_alone();
  EXPECT_GE(alone.share(100)->size(), 100U);
}

TEST(SharedMemory, MoreThanTheHostHasIsRefusedOnEveryWorkerWithWhatThereIs) {
  run_all(shm(3), [](Comm& comm) {
    try {
      static_cast<void>(comm.share(available_memory_bytes() / 2));
      FAIL() << "three halves fit";
    } catch (const Unavailable& error) {
      EXPECT_THAT(error.what(), HasSubstr("3 workers of this host want"));
    }
    EXPECT_THROW(comm.barrier().wait(), Unavailable);
  });
}

TEST(SharedMemory, AHandleLetGoTooEarlyIsAMismatchThatSaysWhatToDo) {
  run_all(shm(2), [](Comm& comm) {
    auto first = std::make_unique<Shared<float>>(comm, 9000);
    Shared<float> second(comm, 9000);
    const std::vector<float> values(9000, 1.0F);
    const Buffer buffer = comm.rank() == 0 ? first->set(values) : second.set(values);
    if (comm.rank() == 1) first.reset();
    try {
      comm.all_reduce(buffer).wait();
      FAIL() << "rank " << comm.rank() << " reads memory that is not mapped";
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 has let go of shared memory"));
      EXPECT_THAT(error.ranks(), Contains(1));
    }
  });
}

TEST(SharedMemory, ChannelsThatAreGoneMakeRoomForOthers) {
  run_all(shm(2), [](Comm& comm) {
    for (std::uint32_t id = 0; id < 700; ++id) {
      Comm channel = comm.channel(id);
      std::vector<std::int32_t> one{1};
      channel.all_reduce(buffer_of(one)).wait();
      ASSERT_EQ(one[0], 2);
    }
  });
}

TEST(SharedMemory, TooManyChannelsAtATimeAreRefused) {
  run_all(shm(2), [](Comm& comm) {
    std::vector<Comm> channels;
    const auto open_many = [&] {
      for (std::uint32_t id = 0; id < 300; ++id) {
        channels.push_back(comm.channel(id));
        channels.back().barrier().wait();
      }
    };
    try {
      open_many();
      FAIL() << "300 channels at a time";
    } catch (const Unavailable& error) {
      EXPECT_THAT(error.what(), HasSubstr("channels of one world"));
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
