// A PyTorch script, written for torchrun, runs unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/command.h"
#include "tests/support/python.h"
#include "tests/support/slow_build.h"

namespace lockstep::testing {
namespace {

using ::testing::IsSupersetOf;

constexpr char kScript[] = R"(
import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(t)
print("sum", int(t.item()), "of", dist.get_world_size(), "elastic", dist.is_torchelastic_launched() if hasattr(dist, "is_torchelastic_launched") else True)
dist.barrier()
dist.destroy_process_group()
)";

TEST(TorchTest, PyTorchScriptRunsUnchanged) {
  if (kSlowBuild)
    GTEST_SKIP() << "a sanitizer sees nothing of a script, and as much of the launcher elsewhere";
  const std::string python = python_with_torch();
  if (python.empty()) GTEST_SKIP() << "no PyTorch: apt install python3-torch";
  Command command({LOCKSTEP_BINARY, "run", "-n", "3", "--", python, "-c", kScript});
  ASSERT_TRUE(command.finish(seconds(90)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_THAT(lines_of(command.out()),
              IsSupersetOf({"[0] sum 6 of 3 elastic True", "[2] sum 6 of 3 elastic True"}));
}

}  // namespace
}  // namespace lockstep::testing
