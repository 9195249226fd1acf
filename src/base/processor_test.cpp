#include "base/processor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <thread>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lockstep::base {
namespace {

TEST(Processor, IsVendorFamilyAndModelOnX86) {
  const std::string text =
      "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
      "model name\t: Some Name @ 2 GHz\nstepping\t: 8\ncpu MHz\t\t: 2000.1\n\n";
  std::string other = text;
  other.replace(other.find(": 0"), 3, ": 1");
  other.replace(other.find("2000.1"), 6, "3100.7");
  EXPECT_EQ(processor_identity_in(text + other), "GenuineIntel 6 143");
}

TEST(Processor, IsImplementerVariantAndPartOnArmOfEveryKindOfCore) {
  const std::string little =
      "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\n"
      "CPU part\t: 0xd05\nCPU revision\t: 1\n\n";
  const std::string big =
      "processor\t: 1\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\n"
      "CPU part\t: 0xd40\nCPU revision\t: 1\n\n";
  EXPECT_EQ(processor_identity_in(little + big + little), "0x41 0x1 0xd05, 0x41 0x1 0xd40");
  EXPECT_EQ(processor_identity_in(big + little), processor_identity_in(little + big));
}

TEST(Processor, IsUnknownWhereNobodySays) {
  EXPECT_EQ(processor_identity_in(""), "unknown");
  EXPECT_EQ(processor_identity_in("processor : 0\nno colon"), "unknown");
}

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
TEST(Processor, OfThisHostIsKnown) {
  EXPECT_NE(processor_identity(), "unknown");
}
#endif

class Denormals : public ::testing::Test {
 protected:
  Denormals() {
    if (!set_flush_denormals(true)) skip_ = true;
    set_flush_denormals(false);
  }
  void SetUp() override {
    if (skip_) GTEST_SKIP() << "this processor cannot flush denormals, as far as we know it";
  }
  ~Denormals() override { set_flush_denormals(false); }

 private:
  bool skip_ = false;
};

// The bits that this thread makes of a denormal result and of a denormal operand. They are compared when the switch is off
// again: a comparison of numbers would flush too.
template <typename Number, typename Bits>
struct Products {
  Bits result = of(std::numeric_limits<Number>::min(), Number{0.5});
  Bits operand = of(std::numeric_limits<Number>::min() / 2, 2);

  static Bits of(Number left, Number right) {
    volatile Number number = left;
    return std::bit_cast<Bits>(number * right);
  }
};
using FloatProducts = Products<float, std::uint32_t>;
using DoubleProducts = Products<double, std::uint64_t>;

TEST_F(Denormals, AreKeptOrTakenForZeroAsAsked) {
  EXPECT_TRUE(set_flush_denormals(true));
  EXPECT_TRUE(flushes_denormals());
  const FloatProducts floats;
  const DoubleProducts doubles;
  EXPECT_TRUE(set_flush_denormals(false));
  EXPECT_FALSE(flushes_denormals());
  EXPECT_EQ(floats.result, 0U);
  EXPECT_EQ(floats.operand, 0U);
  EXPECT_EQ(doubles.result, 0U);
  EXPECT_EQ(doubles.operand, 0U);
  EXPECT_NE(FloatProducts().result, 0U);
  EXPECT_NE(FloatProducts().operand, 0U);
  EXPECT_NE(DoubleProducts().result, 0U);
  EXPECT_NE(DoubleProducts().operand, 0U);
}

#if defined(__x86_64__)
TEST_F(Denormals, OnlyResultsOrOnlyOperandsIsNotEnough) {
  for (const unsigned one : {0x8000U, 0x0040U}) {
    _mm_setcsr(_mm_getcsr() | one);
    EXPECT_FALSE(flushes_denormals());
    set_flush_denormals(false);
  }
}
#endif

TEST_F(Denormals, ANewThreadDoesAsTheOneThatMadeIt) {
  for (const bool on : {true, false}) {
    ASSERT_TRUE(set_flush_denormals(on));
    bool child = !on;
    bool grandchild = !on;
    std::thread([&] {
      child = flushes_denormals();
      std::thread([&] { grandchild = flushes_denormals(); }).join();
    }).join();
    EXPECT_EQ(child, on);
    EXPECT_EQ(grandchild, on);
  }
}

TEST_F(Denormals, AThreadThatIsThereAlreadyStaysAsItIs) {
  bool other = true;
  std::thread([&] {
    std::thread([] { set_flush_denormals(true); }).join();
    other = flushes_denormals();
  }).join();
  EXPECT_FALSE(other);
  EXPECT_FALSE(flushes_denormals());
}

}  // namespace
}  // namespace lockstep::base
