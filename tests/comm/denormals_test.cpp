// Whoever adds on behalf of a worker, itself or a thread of its channel, treats denormals as the worker does.
#include <gtest/gtest.h>
#include <lockstep/comm.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/processor.h"
#include "tests/support/workers.h"

namespace lockstep::testing {
namespace {

class DenormalSums : public ::testing::TestWithParam<std::string> {
 protected:
  ~DenormalSums() override { base::set_flush_denormals(false); }
};

// What two workers add, exactly. Processors flush results and operands by two switches: each case needs one of them.
struct Case {
  std::array<float, 2> operands;
  float kept;
};
constexpr float kLeast = std::numeric_limits<float>::min();
constexpr Case kDenormalResult = {{1.5F * kLeast, -kLeast}, kLeast / 2};
constexpr Case kDenormalOperands = {{kLeast * 0.75F, kLeast * 0.75F}, 1.5F * kLeast};

float operand(const Case& added, const Comm& comm) {
  return added.operands[static_cast<std::size_t>(comm.rank())];
}

// By bits: a comparison of numbers would flush too.
void expect_all(const float* data, std::size_t count, float expected) {
  const auto wanted = std::bit_cast<std::uint32_t>(expected);
  const auto same = std::count_if(
      data, data + count, [&](float x) { return std::bit_cast<std::uint32_t>(x) == wanted; });
  EXPECT_EQ(static_cast<std::size_t>(same), count);
}

void expect_sums(Comm& comm, const Case& added, bool flushed) {
  for (const std::size_t count : {std::size_t{5}, std::size_t{20'011}}) {
    for (const Algorithm algorithm :
         {Algorithm::kDirect, Algorithm::kHalvingDoubling, Algorithm::kTree, Algorithm::kRing}) {
      SCOPED_TRACE(std::string(name(algorithm)) + " x" + std::to_string(count));
      std::vector<float> data(count, operand(added, comm));
      comm.all_reduce({data.data(), count, DType::kFloat32}, {.algorithm = algorithm}).wait();
      expect_all(data.data(), count, flushed ? 0 : added.kept);
    }
  }
}

TEST_P(DenormalSums, AreFlushedOrKeptAsTheWorkersSay) {
  if (!base::set_flush_denormals(true)) GTEST_SKIP() << "this processor cannot flush denormals";
  for (const bool on : {true, false}) {
    base::set_flush_denormals(on);
    run_all({GetParam(), 2}, [on](Comm& comm) {
      expect_sums(comm, kDenormalResult, on);
      expect_sums(comm, kDenormalOperands, on);
    });
  }
}

// Nobody waits: the channels' own threads add.
TEST_P(DenormalSums, AreFlushedByTheThreadOfAChannelToo) {
  if (!base::set_flush_denormals(true)) GTEST_SKIP() << "this processor cannot flush denormals";
  run_all({GetParam(), 2}, [](Comm& comm) {
    std::vector<std::vector<float>> many(
        6, std::vector<float>(20'011, operand(kDenormalResult, comm)));
    std::vector<Work> works;
    for (auto& data : many)
      works.push_back(comm.all_reduce({data.data(), data.size(), DType::kFloat32}));
    const auto deadline = Deadline::after(std::chrono::seconds(15));
    while (!works.back().done() && !deadline.expired()) std::this_thread::yield();
    for (const Work& work : works) work.wait();
    for (const auto& data : many) expect_all(data.data(), data.size(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Engine, DenormalSums, ::testing::ValuesIn(engines_in_one_process()),
                         [](const auto& engine) { return engine.param; });

TEST(DenormalSumsInSharedMemory, AreFlushedOrKeptAsTheWorkersSay) {
  for (const bool on : {true, false}) {
    if (!base::set_flush_denormals(on)) GTEST_SKIP() << "this processor cannot flush denormals";
    run_all({"shm", 2}, [&](Comm& comm) {
      constexpr std::size_t kCount = 20'011;
      const auto arena = comm.share(kCount * sizeof(float));
      auto* data = reinterpret_cast<float*>(arena->data());
      for (const Case& added : {kDenormalResult, kDenormalOperands}) {
        std::fill_n(data, kCount, operand(added, comm));
        comm.all_reduce({data, kCount, DType::kFloat32}).wait();
        expect_all(data, kCount, on ? 0 : added.kept);
      }
    });
  }
  base::set_flush_denormals(false);
}

}  // namespace
}  // namespace lockstep::testing
