#include "app/train/open_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::app {
namespace {

using testing::HasSubstr;
using testing::Not;

TrainArguments with(std::vector<std::string> more) {
  more.insert(more.end(), {"--data", "synthetic"});
  return parse_train_arguments(more);
}

TEST(OpenChoices, AreTheCheckpointsElseTheDefaults) {
  TrainArguments arguments = with({"--resume", "--checkpoint", "run"});
  TrainArguments anew = arguments;
  make_open_choices(arguments, {{"threads", "3"}, {"flush_denormal", "on"}, {"onednn", "off"}});
  EXPECT_EQ(arguments.threads, 3);
  EXPECT_EQ(arguments.flush_denormal, "on");
  EXPECT_EQ(arguments.onednn, "off");
  EXPECT_EQ(arguments.deterministic, "on");
  make_open_choices(anew, {});
  EXPECT_EQ(anew.threads, 1);
  EXPECT_EQ(anew.flush_denormal, "off");
  EXPECT_EQ(anew.onednn, kOpen);
}

TEST(OpenChoices, WorkersAreCountedByTheCheckpointsShards) {
  TrainArguments arguments = with({"--resume", "--checkpoint", "run"});
  EXPECT_EQ(arguments.workers, 0);
  make_open_choices(arguments, {{"shards", "1"}});
  EXPECT_EQ(arguments.workers, 1);
  EXPECT_EQ(arguments.shards, 0);  // the Trainer's to read
  TrainArguments asked = with({"--resume", "--checkpoint", "run", "-n", "3"});
  make_open_choices(asked, {{"shards", "1"}});
  EXPECT_EQ(asked.workers, 3);
}

TEST(OpenChoices, AdviceIsAnOptionUnlessTheCheckpointWouldRefuseIt) {
  const TrainArguments arguments = with({"--resume", "--checkpoint", "run"});
  EXPECT_EQ(advice(arguments, {}, "flush_denormal"), "use --flush-denormal off");
  EXPECT_EQ(advice(arguments, {}, "onednn"), "use --onednn off");
  EXPECT_EQ(advice(arguments, {}, "threads"), "use fewer --threads");
  const std::string bound = advice(arguments, {{"onednn", "on"}}, "onednn");
  EXPECT_THAT(bound, HasSubstr("the checkpoint in run was made with onednn = on"));
  EXPECT_THAT(bound, Not(HasSubstr("--onednn")));
}

}  // namespace
}  // namespace lockstep::app
