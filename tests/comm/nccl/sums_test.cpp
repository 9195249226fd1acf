// The order of additions and the arithmetic of the device, held to the CPU's.
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <limits>

#include "flat/tree_program.h"
#include "flat/tree_sum.h"
#include "flat/tree_sum_element.h"
#include "tests/comm/nccl/fake_device.h"
#include "tests/support/elements.h"

namespace lockstep::testing {
namespace {

TEST(TreeProgram, IsTheTreeForOneOperandOfEachWorker) {
  for (int n = 1; n <= 300; ++n) {
    const auto program = flat::tree_program(plan::plan_reduction(n, n));
    for (int i = 0; i < n; ++i)
      ASSERT_EQ(program[static_cast<std::size_t>(i)], flat::element::adds_after(i, n))
          << n << ' ' << i;
  }
}

TEST(TreeProgram, RefusesMoreOperandsThanAKernelTakes) {
  EXPECT_NO_THROW(flat::tree_program(plan::plan_reduction(448, 448)));
  EXPECT_THROW(flat::tree_program(plan::plan_reduction(449, 449)), Unavailable);
}

template <typename T>
void expect_the_cpus_bits(int shards, int workers, std::size_t count, const flat::Fold& fold,
                          std::size_t skip) {
  const plan::Reduction plan = plan::plan_reduction(shards, workers);
  std::vector<std::vector<T>> rows;
  std::vector<const void*> operands;
  for (std::size_t i = 0; i < plan.operands.size(); ++i) {
    rows.push_back(rough_elements<T>(count + skip, static_cast<std::uint32_t>(i + 1)));
    if constexpr (std::is_floating_point_v<T>)
      rows.back()[skip] = std::numeric_limits<T>::denorm_min();
  }
  for (auto& row : rows) operands.push_back(row.data() + skip);
  std::vector<T> expected(count);
  std::vector<T> actual(count + skip);
  flat::TreeSum(plan, fold).run(operands, expected.data(), count);
  sum_on_host({operands, flat::tree_program(plan), actual.data() + skip, count, fold});
  actual.erase(actual.begin(), actual.begin() + static_cast<std::ptrdiff_t>(skip));
  EXPECT_TRUE(same_bits(actual, expected))
      << name(fold.dtype) << ' ' << name(fold.op) << ' ' << shards << " on " << workers;
}

template <typename T>
void expect_the_cpus_bits() {
  constexpr bool kFloating = !std::is_integral_v<T>;
  for (const auto& [shards, workers] :
       {std::pair{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {8, 8}, {7, 3}, {13, 4}, {64, 64}}) {
    for (const std::size_t skip : {0UL, 1UL}) {
      expect_the_cpus_bits<T>(shards, workers, 1003, {dtype_of<T>(), ReduceOp::kSum, 1}, skip);
      expect_the_cpus_bits<T>(shards, workers, 1003, {dtype_of<T>(), ReduceOp::kMin, 1}, skip);
      expect_the_cpus_bits<T>(shards, workers, 1003, {dtype_of<T>(), ReduceOp::kMax, 1}, skip);
      if (kFloating)
        expect_the_cpus_bits<T>(shards, workers, 1003, {dtype_of<T>(), ReduceOp::kSum, 1.0 / 7},
                                skip);
    }
  }
}

TEST(DeviceSum, HasTheBitsOfTheCpusForEveryTypeAndTree) {
  expect_the_cpus_bits<float>();
  expect_the_cpus_bits<double>();
  expect_the_cpus_bits<Float16>();
  expect_the_cpus_bits<BFloat16>();
  expect_the_cpus_bits<std::int32_t>();
  expect_the_cpus_bits<std::int64_t>();
  expect_the_cpus_bits<std::uint8_t>();
}

template <typename Element>
void expect_the_cpus_conversions(DType dtype) {
  using Stored = flat::element::Stored<Element>;
  for (std::uint32_t bits = 0; bits < 65'536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    float wide = 0;
    flat::widen(dtype, &half, &wide, 1);
    const float ours = Stored::load(Element{half});
    ASSERT_EQ(std::bit_cast<std::uint32_t>(ours), std::bit_cast<std::uint32_t>(wide)) << bits;
    // Between this half and the next, on both sides of the middle.
    for (const std::uint32_t more : {0U, 1U, 0xfffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U}) {
      const float value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(wide) + more);
      std::uint16_t narrow = 0;
      flat::narrow(dtype, &value, &narrow, 1);
      ASSERT_EQ(Stored::store(value).bits, narrow) << bits << '+' << more;
    }
  }
}

TEST(DeviceSum, ConvertsHalvesAsTheCpuDoes) {
  expect_the_cpus_conversions<flat::element::Float16>(DType::kFloat16);
  expect_the_cpus_conversions<flat::element::BFloat16>(DType::kBFloat16);
}

}  // namespace
}  // namespace lockstep::testing
