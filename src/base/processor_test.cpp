#include "base/processor.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep::base
