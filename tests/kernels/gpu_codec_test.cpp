// The kernels of codecs on a real GPU, beside the codecs of CPUs.
#include <gtest/gtest.h>
#include <lockstep/codec.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "flat/cuda/handles.h"
#include "flat/device_codec.h"
#include "flat/device_low_rank.h"
#include "flat/fold.h"
#include "flat/low_rank.h"
#include "flat/tree_sum.h"
#include "plan/tree.h"
#include "tests/kernels/needs_a_gpu.h"
#include "tests/support/elements.h"

namespace lockstep::testing {
namespace {

using cuda::DeviceArray;

plan::Layout layout_of_all_sizes() {
  std::vector<plan::Parameter> all;
  for (const std::size_t count : {1, 2, 3, 4, 5, 7, 8, 9, 31, 100, 1023, 1024, 1025, 2048, 5001})
    all.push_back({"of " + std::to_string(count), DType::kFloat32, count});
  return plan::Layout(all);
}

// The elements of a layout in flat memory; the gaps are 0.
using Flat = std::vector<float>;

Flat random_flat(const plan::Layout& layout, std::uint64_t seed) {
  Flat flat(layout.bytes() / sizeof(float));
  const auto values = rough_elements<float>(layout.elements(), seed);
  std::size_t next = 0;
  for (const plan::Entry& entry : layout.entries()) {
    for (std::size_t i = 0; i < entry.count; ++i)
      flat[entry.offset / sizeof(float) + i] = values[next++] * 0x1p-7F;
  }
  return flat;
}

// What a step makes of the gradients of all shards.
struct Outcome {
  Flat average;
  std::vector<Flat> lost;  // of each shard, then of the average
};

// The definition (docs/decisions/0028-codecs-belong-to-shards.md), with the codec of CPUs.
class OnHost {
 public:
  OnHost(const plan::Layout& layout, codec::Ptr codec, int shards)
      : layout_(layout), codec_(std::move(codec)), shards_(shards) {
    const Flat zeros(layout.bytes() / sizeof(float));
    outcome_.lost.assign(static_cast<std::size_t>(shards) + 1, zeros);
    outcome_.average = zeros;
  }

  const Outcome& step(std::vector<Flat> gradients, float factor) {
    std::vector<const void*> operands;
    for (std::size_t shard = 0; shard < gradients.size(); ++shard) {
      send(gradients[shard], factor, outcome_.lost[shard]);
      operands.push_back(gradients[shard].data());
    }
    flat::TreeSum sum(plan::plan_of_one_each(shards_), {DType::kFloat32});
    constexpr std::size_t kStrip = plan::kBlockElements;
    for (std::size_t first = 0; first < outcome_.average.size(); first += kStrip) {
      std::vector<const void*> here;
      for (const Flat& gradient : gradients) here.push_back(gradient.data() + first);
      sum.run(here, outcome_.average.data() + first,
              std::min(kStrip, outcome_.average.size() - first));
    }
    send(outcome_.average, 1, outcome_.lost.back());
    return outcome_;
  }

 private:
  void send(Flat& values, float factor, Flat& lost) const {
    for (std::size_t number = 0; number < layout_.blocks(); ++number) {
      const plan::Stretch block = layout_.block(number);
      const std::size_t first = layout_.entries()[block.entry].offset / sizeof(float) + block.first;
      std::vector<float> sent(block.count);
      for (std::size_t i = 0; i < block.count; ++i) {
        sent[i] = values[first + i] * factor;
        if (codec_->has_error_feedback()) sent[i] += lost[first + i];
      }
      std::vector<std::byte> bytes(codec_->bytes(block.count));
      codec_->encode(sent, bytes.data());
      codec_->decode(bytes.data(), {values.data() + first, block.count});
      for (std::size_t i = 0; i < block.count && codec_->has_error_feedback(); ++i)
        lost[first + i] = sent[i] - values[first + i];
    }
  }

  const plan::Layout& layout_;
  codec::Ptr codec_;
  int shards_;
  Outcome outcome_;
};

Flat from_device(const DeviceArray<float>& array) {
  Flat values(array.size());
  cuda::check(
      cudaMemcpy(values.data(), array.data(), array.size() * sizeof(float), cudaMemcpyDefault),
      "cudaMemcpy");
  return values;
}

std::byte* bytes_of(const DeviceArray<float>& array) {
  return reinterpret_cast<std::byte*>(array.data());
}

// The same with the kernels, in two ranges of blocks, as two owners would.
class OnDevice {
 public:
  OnDevice(const plan::Layout& layout, const Codec& codec, int shards)
      : layout_(layout),
        format_(dynamic_cast<const flat::KnownToDevices&>(codec).on_device()),
        blocks_(flat::codec_blocks(layout, format_)),
        table_(blocks_),
        shards_(shards),
        average_(Flat(layout.bytes() / sizeof(float))) {
    for (int i = 0; i <= shards && codec.has_error_feedback(); ++i)
      lost_.emplace_back(Flat(layout.bytes() / sizeof(float)));
  }

  Outcome step(const std::vector<Flat>& gradients, float factor) {
    const std::size_t middle = layout_.blocks() / 3;
    run({0, middle}, gradients, factor);
    run({middle, layout_.blocks()}, gradients, factor);
    Outcome outcome{from_device(average_), {}};
    for (const auto& lost : lost_) outcome.lost.push_back(from_device(lost));
    return outcome;
  }

 private:
  std::byte* lost(std::size_t shard) const {
    return lost_.empty() ? nullptr : bytes_of(lost_[shard]);
  }
  std::size_t at(std::size_t block) const {
    return block < blocks_.size() ? blocks_[block].at
                                  : blocks_.back().at + format_.bytes(blocks_.back().count);
  }

  void run(plan::BlockRange blocks, const std::vector<Flat>& gradients, float factor) {
    const flat::CodecRange range{table_.data(), blocks, at(blocks.begin)};
    const std::size_t stride = at(blocks.end) - at(blocks.begin);
    const DeviceArray<std::byte> sent(stride * gradients.size());
    const DeviceArray<std::byte> averages(stride);
    for (std::size_t shard = 0; shard < gradients.size(); ++shard) {
      const DeviceArray<float> gradient(gradients[shard]);
      flat::queue_encode({range, format_.kind, bytes_of(gradient), factor, lost(shard),
                          sent.data() + stride * shard},
                         stream_.get());
      cuda::check(cudaDeviceSynchronize(), "encoding");
    }
    flat::queue_average(
        {range, format_.kind, sent.data(), stride, static_cast<std::uint32_t>(shards_),
         lost(gradients.size()), averages.data()},
        stream_.get());
    flat::queue_decode({range, format_.kind, averages.data(), bytes_of(average_)}, stream_.get());
    cuda::check(cudaDeviceSynchronize(), "averaging");
  }

  const plan::Layout& layout_;
  flat::DeviceFormat format_;
  std::vector<flat::CodecBlock> blocks_;
  DeviceArray<flat::CodecBlock> table_;
  int shards_;
  std::vector<DeviceArray<float>> lost_;
  DeviceArray<float> average_;
  cuda::Stream stream_ = cuda::make_stream();
};

const std::vector<std::string> kExact = {"bf16",       "fp16",  "int8",
                                         "int8:plain", "top-k", "top-k:0.25"};

TEST(GpuCodecs, HaveTheBitsOfTheCpu) {
  NEEDS_A_GPU();
  const plan::Layout layout = layout_of_all_sizes();
  for (const std::string& words : kExact) {
    const auto codec = codec::parse(words);
    for (const int shards : {1, 2, 3, 4, 8, 11}) {
      OnHost host(layout, codec, shards);
      OnDevice device(layout, *codec, shards);
      for (std::uint64_t step = 0; step < 3; ++step) {
        std::vector<Flat> gradients;
        for (int shard = 0; shard < shards; ++shard)
          gradients.push_back(random_flat(layout, step * 100 + static_cast<std::uint64_t>(shard)));
        const Outcome found = device.step(gradients, 0.37F);
        const Outcome& expected = host.step(gradients, 0.37F);
        ASSERT_TRUE(same_bits(found.average, expected.average)) << words << ' ' << shards;
        for (std::size_t i = 0; i < found.lost.size(); ++i)
          ASSERT_TRUE(same_bits(found.lost[i], expected.lost[i])) << words << ' ' << i;
      }
    }
  }
}

// Its means are of sums in another order, so a value may be the next float; and so what was lost
// differs by that.
TEST(GpuCodecs, OneBitHasTheMeansOfTheCpu) {
  NEEDS_A_GPU();
  const plan::Layout layout = layout_of_all_sizes();
  const auto codec = codec::one_bit();
  constexpr int kShards = 3;
  OnHost host(layout, codec, kShards);
  OnDevice device(layout, *codec, kShards);
  std::vector<Flat> gradients;
  for (std::uint64_t shard = 0; shard < kShards; ++shard)
    gradients.push_back(random_flat(layout, shard));
  const Outcome found = device.step(gradients, 0.25F);
  const Outcome& expected = host.step(gradients, 0.25F);
  const auto largest = [](const Flat& values) {
    float most = 0;
    for (const float value : values) most = std::max(most, std::fabs(value));
    return most;
  };
  const auto expect_near = [&](const Flat& one, const Flat& other) {
    const float most = 1e-6F * largest(other);
    for (std::size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(one[i], other[i], most) << i;
  };
  expect_near(found.average, expected.average);
  for (std::size_t i = 0; i < found.lost.size(); ++i) expect_near(found.lost[i], expected.lost[i]);
}

TEST(GpuCodecs, TopKTakesTheFirstOfEqualElements) {
  NEEDS_A_GPU();
  const plan::Layout layout({{"w", DType::kFloat32, 100}, {"zeros", DType::kFloat32, 1024}});
  Flat gradient(layout.bytes() / sizeof(float));
  std::fill_n(gradient.begin() + static_cast<std::ptrdiff_t>(layout.entries()[1].offset / 4), 100,
              0.5F);
  const auto codec = codec::top_k(0.04);
  OnHost host(layout, codec, 1);
  OnDevice device(layout, *codec, 1);
  for (int step = 0; step < 30; ++step) {
    const Outcome found = device.step({gradient}, 1);
    ASSERT_TRUE(same_bits(found.average, host.step({gradient}, 1).average)) << step;
  }
}

TEST(GpuCodecs, ElementsThatAreNotFiniteStaySo) {
  NEEDS_A_GPU();
  const plan::Layout layout({{"w", DType::kFloat32, 600}});
  std::vector<std::string> all = kExact;
  all.push_back("one-bit");
  for (const std::string& words : all) {
    const auto codec = codec::parse(words);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      Flat gradient = random_flat(layout, 3);
      gradient[123] = bad;
      OnDevice device(layout, *codec, 2);
      const Outcome found = device.step({random_flat(layout, 4), gradient}, 1);
      EXPECT_FALSE(std::isfinite(found.average[123])) << words << ' ' << bad;
    }
    for (const float tiny : {0.0F, -0.0F, std::numeric_limits<float>::denorm_min(), 0x1p-101F}) {
      OnDevice device(layout, *codec, 1);
      Flat gradient(layout.bytes() / sizeof(float));
      std::fill_n(gradient.begin(), 600, tiny);
      for (const float value : device.step({gradient}, 1).average)
        ASSERT_LE(std::fabs(value), std::fabs(tiny)) << words;
    }
  }
}

void orthonormalise_there(std::vector<float>& matrix, std::size_t rows, int rank) {
  const DeviceArray<float> there(matrix);
  const DeviceArray<double> columns(matrix.size());
  const cuda::Stream stream = cuda::make_stream();
  flat::queue_orthonormalise({there.data(), rows, rank, columns.data()}, stream.get());
  cuda::check(cudaDeviceSynchronize(), "orthonormalising");
  matrix = from_device(there);
}

TEST(GpuLowRank, MakesFactorsOrthonormalAsTheCpu) {
  NEEDS_A_GPU();
  for (const std::size_t rows : {8, 500, 5003}) {
    for (const int rank : {1, 2, 8}) {
      auto matrix = rough_elements<float>(rows * static_cast<std::size_t>(rank), 3);
      auto expected = matrix;
      orthonormalise_there(matrix, rows, rank);
      flat::orthonormalise(expected.data(), rows, rank);
      for (std::size_t i = 0; i < matrix.size(); ++i)
        ASSERT_NEAR(matrix[i], expected[i], 1e-6) << rows << ' ' << rank;
    }
  }
}

// The second column is that of the first and of an axis; the others are in the span of these two, or 0.
TEST(GpuLowRank, AColumnInTheSpanOfOthersBecomesAnotherDirection) {
  NEEDS_A_GPU();
  constexpr std::size_t kRows = 100;
  constexpr int kRank = 4;
  std::vector<float> matrix(kRows * kRank);
  const std::vector<std::vector<float>> rows = {{0.6F, -0.8F, 1.2F, 0}, {0.8F, 0.6F, 1.6F, 0}};
  for (std::size_t row = 0; row < rows.size(); ++row)
    std::copy(rows[row].begin(), rows[row].end(),
              matrix.begin() + static_cast<std::ptrdiff_t>(row * kRank));
  orthonormalise_there(matrix, kRows, kRank);
  for (std::size_t one = 0; one < kRank; ++one) {
    for (std::size_t other = 0; other <= one; ++other) {
      double product = 0;
      for (std::size_t row = 0; row < kRows; ++row)
        product += double{matrix[row * kRank + one]} * matrix[row * kRank + other];
      EXPECT_NEAR(product, one == other ? 1 : 0, 1e-6) << one << ' ' << other;
    }
  }
  matrix[5] = std::numeric_limits<float>::quiet_NaN();
  orthonormalise_there(matrix, kRows, kRank);
  EXPECT_TRUE(std::isnan(matrix[1]));
}

}  // namespace
}  // namespace lockstep::testing
