// A PyTorch script, written for torchrun, runs unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/command.h"

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
  // Debian's own interpreter: another python3 on PATH may hide it.
  Command probe({"/usr/bin/python3", "-c", "import torch"});
  if (!probe.finish(seconds(60)) || probe.exit_code() != 0) {
    GTEST_SKIP() << "no PyTorch for /usr/bin/python3; apt install python3-torch";
  }
  Command command({LOCKSTEP_BINARY, "run", "-n", "3", "--", "/usr/bin/python3", "-c", kScript});
  ASSERT_TRUE(command.finish(seconds(90)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_THAT(lines_of(command.out()),
              IsSupersetOf({"[0] sum 6 of 3 elastic True", "[2] sum 6 of 3 elastic True"}));
}

}  // namespace
}  // namespace lockstep::testing
