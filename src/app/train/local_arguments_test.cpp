#include "app/train/local_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "app/train/arguments.h"

namespace lockstep::app {
namespace {

using ::testing::HasSubstr;

LocalSteps parsed(std::vector<std::string> words) {
  words.insert(words.end(), {"--data", "synthetic"});
  return parse_train_arguments(words).local;
}

std::string refused(const std::vector<std::string>& words) {
  try {
    parsed(words);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(LocalArguments, AreOffIfTheyAreNotGiven) {
  EXPECT_FALSE(parsed({}).enabled());
}

TEST(LocalArguments, SayRoundsOuterUpdateAndState) {
  EXPECT_EQ(to_string(parsed({"--local-steps", "8"})), to_string(LocalSteps::sgd(8)));
  EXPECT_EQ(to_string(parsed({"--local-steps", "1,1000:16"})),
            to_string(LocalSteps::post_local_sgd(1000, 16)));
  EXPECT_EQ(to_string(parsed({"--local-steps", "500", "--outer", "nesterov"})),
            to_string(LocalSteps::diloco()));
  EXPECT_EQ(parsed({"--local-steps", "8", "--outer", "mean"}).outer_lr, 1);
  const LocalSteps local =
      parsed({"--local-steps", "8", "--outer", "sgd:0.5:0.3", "--local-state", "reset"});
  EXPECT_EQ(local.outer_lr, 0.5);
  EXPECT_EQ(local.outer_momentum, 0.3);
  EXPECT_FALSE(local.outer_nesterov);
  EXPECT_EQ(local.state, LocalState::kReset);
  EXPECT_TRUE(parsed({"--local-steps", "8", "--outer", "nesterov:0.5:0.3"}).outer_nesterov);
}

TEST(LocalArguments, SayFragments) {
  EXPECT_EQ(to_string(parsed({"--local-steps", "100", "--outer", "nesterov", "--fragments", "4"})),
            to_string(LocalSteps::streaming_diloco()));
  const LocalSteps local = parsed({"--local-steps", "6", "--fragments", "2:0.25"});
  ASSERT_TRUE(local.streaming);
  EXPECT_EQ(local.streaming->keep, 0.25);
  EXPECT_EQ(local.stages.front().steps, 3);
  for (const std::string words : {"x", "1", "-2", "4:x", "4:0.5:1", "99999999999"})
    EXPECT_THAT(refused({"--local-steps", "8", "--fragments=" + words}), HasSubstr("--fragments"));
  EXPECT_THAT(refused({"--local-steps", "8", "--fragments", "4:1"}),
              HasSubstr("keeps 1 of its own"));
  EXPECT_THAT(refused({"--local-steps", "6", "--fragments", "4"}), HasSubstr("a multiple of 4"));
  EXPECT_THAT(refused({"--fragments", "4"}), HasSubstr("add --local-steps"));
  EXPECT_THAT(refused({"--local-steps", "8", "--fragments", "4", "--local-state", "reset"}),
              HasSubstr("keeps its weights"));
}

TEST(LocalArguments, WhatCannotBeUnderstoodIsRefusedInOneLine) {
  for (const std::string words : {"x", "8,", "1,16", "5:8", "1,2:3:4"})
    EXPECT_THAT(refused({"--local-steps=" + words}), HasSubstr("--local-steps")) << words;
  EXPECT_THAT(refused({"--local-steps", "0"}), HasSubstr("a round of 0 steps"));
  EXPECT_THAT(refused({"--local-steps", "1,0:4"}), HasSubstr("later than the one before"));
  EXPECT_THAT(refused({"--local-steps", "4", "--outer", "adam"}), HasSubstr("choose mean"));
  EXPECT_THAT(refused({"--local-steps", "4", "--outer", "sgd:x"}), HasSubstr("'x' is no number"));
  EXPECT_THAT(refused({"--local-steps", "4", "--outer", "sgd:0"}), HasSubstr("learning rate 0"));
  EXPECT_THAT(refused({"--local-steps", "4", "--local-state", "lost"}), HasSubstr("--local-state"));
}

TEST(LocalArguments, WhatMakesNoSenseWithLocalStepsIsRefusedByName) {
  EXPECT_THAT(refused({"--outer", "mean"}), HasSubstr("add --local-steps"));
  EXPECT_THAT(refused({"--local-state", "kept"}), HasSubstr("add --local-steps"));
  EXPECT_THAT(refused({"--local-steps", "4", "--sync-batchnorm", "on"}),
              HasSubstr("--sync-batchnorm"));
  EXPECT_THAT(refused({"--local-steps", "4", "--noise-scale"}), HasSubstr("--noise-scale"));
  EXPECT_THAT(refused({"--local-steps", "4", "--device", "cuda", "--graphs", "on"}),
              HasSubstr("--graphs on"));
  EXPECT_THAT(refused({"--local-steps", "4", "--ema", "0.9"}), HasSubstr("--ema"));
  EXPECT_THAT(refused({"--local-steps", "4", "--precision", "fp16"}), HasSubstr("--precision"));
  EXPECT_THAT(refused({"--local-steps", "4", "--loss-scale", "8"}), HasSubstr("--loss-scale"));
}

TEST(LocalArguments, SayAsynchronousRounds) {
  EXPECT_EQ(to_string(parsed({"--staleness", "4"})), to_string(LocalSteps::stale(4)));
  EXPECT_EQ(to_string(parsed({"--staleness", "any", "--round", "20"})),
            to_string(LocalSteps::stale(Asynchronous::kUnbounded, 20)));
  const LocalSteps local = parsed({"--staleness", "1", "--stale-lr", "reduced",
                                   "--delay-compensation", "0.04", "--order", "run.order"});
  ASSERT_TRUE(local.asynchronous);
  EXPECT_TRUE(local.asynchronous->slows_if_stale);
  EXPECT_EQ(local.asynchronous->delay_compensation, 0.04);
  EXPECT_EQ(local.asynchronous->order, "run.order");
}

TEST(LocalArguments, AStalenessOf0IsTheSynchronousStep) {
  EXPECT_FALSE(parsed({"--staleness", "0"}).enabled());
  EXPECT_FALSE(parsed({"--backups", "0"}).enabled());
  EXPECT_EQ(to_string(parsed({"--staleness", "4", "--backups", "0"})),
            to_string(LocalSteps::stale(4)));
  EXPECT_EQ(to_string(parsed({"--backups", "1"})), to_string(LocalSteps::with_backups(1)));
  EXPECT_THAT(refused({"--staleness", "0", "--order", "x"}), HasSubstr("synchronous step"));
}

TEST(LocalArguments, AsynchronousStepsThatMakeNoSenseAreRefused) {
  for (const std::string words : {"-1", "x", "1.5"})
    EXPECT_THAT(refused({"--staleness=" + words}), HasSubstr("--staleness")) << words;
  EXPECT_THAT(refused({"--round", "5"}), HasSubstr("add --staleness"));
  EXPECT_THAT(refused({"--staleness", "1", "--replay", ""}), HasSubstr("--replay '': give"));
  EXPECT_THAT(refused({"--backups", "1", "--staleness", "1"}), HasSubstr("--backups with"));
  EXPECT_THAT(refused({"--backups", "-1"}), HasSubstr("-1 backup shards"));
  EXPECT_THAT(refused({"--backups", "1", "--stale-lr", "reduced"}),
              HasSubstr("no stale gradients"));
  EXPECT_THAT(refused({"--replay", "x"}), HasSubstr("add --staleness"));
  EXPECT_THAT(refused({"--staleness", "1", "--round", "0"}), HasSubstr("a round of 0"));
  EXPECT_THAT(refused({"--staleness", "1", "--delay-compensation=-1"}),
              HasSubstr("a delay compensation of -1"));
  EXPECT_THAT(refused({"--staleness", "1", "--local-steps", "4"}), HasSubstr("--local-steps"));
  EXPECT_THAT(refused({"--staleness", "1", "--codec", "bf16"}), HasSubstr("is not encoded"));
  EXPECT_THAT(refused({"--staleness", "1", "--algorithm", "ring"}), HasSubstr("no all-reduce"));
  EXPECT_THAT(refused({"--staleness", "1", "--ema", "0.9"}), HasSubstr("with --staleness"));
  EXPECT_THAT(refused({"--staleness", "1", "--order", "/no/such/folder/x"}),
              HasSubstr("there is no directory"));
  EXPECT_THAT(refused({"--staleness", "1", "--replay", "/no/such/file"}),
              HasSubstr("there is no such file"));
  const std::string file = ::testing::TempDir() + "lockstep-an-order";
  std::ofstream(file) << "lockstep order 1\n";
  const std::string again = ::testing::TempDir() + "./lockstep-an-order";
  EXPECT_THAT(refused({"--staleness", "1", "--order", file, "--replay", again}),
              HasSubstr("the same file"));
  EXPECT_THAT(refused({"--staleness", "1", "--verify", file}), HasSubstr("add --replay"));
  std::remove(file.c_str());
}

}  // namespace
}  // namespace lockstep::app
