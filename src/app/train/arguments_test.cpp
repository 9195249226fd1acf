#include "app/train/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <stdlib.h>  // NOLINT: mkdtemp

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace lockstep::app {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string refusal_of(std::vector<std::string> words) {
  words.insert(words.begin(), {"--data", "synthetic"});
  try {
    parse_train_arguments(words);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "";
}

// Each is refused in one line that names the option, and nothing is read as something else.
TEST(TrainArguments, NumbersAreReadWholeOrRefused) {
  const std::vector<std::string> reals = {
      "--lr", "--momentum", "--weight-decay", "--clip-norm", "--clip-value", "--ema", "--dropout"};
  const std::vector<std::string> counts = {
      "--epochs",     "--steps",           "--global-batch", "--shards",         "--accumulate",
      "--warmup",     "--scale-lr",        "--context",      "--noise-scale",    "--threads",
      "--vocabulary", "--workers",         "--bucket-bytes", "--loader-threads", "--seed",
      "--until",      "--checkpoint-every"};
  const auto refused = [](const std::string& option, const std::string& value) {
    const std::string text = refusal_of({option, value});
    EXPECT_THAT(text, HasSubstr(option + " " + value)) << option << " " << value;
    EXPECT_THAT(text, Not(HasSubstr("\n")));
  };
  for (const auto& option : reals) {
    for (const char* value : {"1e999", "inf", "nan", "0.1x", "-1", "fast", "0x1p3", "1e-9999"})
      refused(option, value);
  }
  for (const auto& option : counts) {
    for (const char* value : {"99999999999999999999", "1e3", "2.5", "7x", "0x10", "inf", "-7"})
      refused(option, value);
  }
  EXPECT_EQ(parse_train_arguments({"--seed", "18446744073709551615"}).seed, UINT64_MAX);
  EXPECT_EQ(parse_train_arguments({"--steps", "010"}).steps, 10);
  EXPECT_EQ(parse_train_arguments({"--lr", "+1e-3"}).lr, 1e-3);
  EXPECT_EQ(parse_train_arguments({"--scale-lr"}).scale_lr_from, 256);
  EXPECT_EQ(parse_train_arguments({"--noise-scale"}).noise_scale_every, 16);
  EXPECT_EQ(parse_train_arguments({"--noise-scale", "4"}).noise_scale_every, 4);
  EXPECT_EQ(parse_train_arguments({"--noise-scale=4"}).noise_scale_every, 4);
  EXPECT_THAT(refusal_of({"--noise-scale="}), HasSubstr("--noise-scale= has no value"));
  EXPECT_THAT(refusal_of({"--noise-scale", "--shards", "1", "--workers", "1"}),
              HasSubstr("this job has one"));
  EXPECT_THAT(refusal_of({"--noise-scale", "--clip-value", "1"}), HasSubstr("--clip-norm"));
  EXPECT_THAT(refusal_of({"--momentum", "1.5"}), HasSubstr("--momentum 1.5: give a number from 0"));
  EXPECT_THAT(refusal_of({"--optimizer", "adamw", "--momentum", "0.9"}),
              HasSubstr("--momentum: adamw has none"));
  EXPECT_THAT(refusal_of({"--scale-rule", "square-root"}), HasSubstr("add --scale-lr"));
  EXPECT_THAT(refusal_of({"--ema", "1"}), HasSubstr("give a number below 1"));
  EXPECT_THAT(refusal_of({"--clip-norm", "1", "--clip-value", "1"}), HasSubstr("give one"));
}

TEST(TrainArguments, ANumberOfWorkersMayChangeWithinTheShards) {
  const auto arguments = parse_train_arguments({"--workers", "1:8", "--shards", "8"});
  EXPECT_EQ(arguments.workers_range->most, 8);
  EXPECT_EQ(arguments.elastic.min_workers, 1);
  EXPECT_GE(arguments.workers, 1);
  EXPECT_LE(arguments.workers, 8);
  EXPECT_EQ(parse_train_arguments({"--workers", "7:8", "--shards", "8"}).workers,
            std::clamp(cores_of_this_host(), 7, 8));
  const auto last = parse_train_arguments({"--workers", "1:8", "--workers", "2"});
  EXPECT_EQ(last.workers, 2) << "as the command tells its workers";
  EXPECT_FALSE(last.workers_range);
  EXPECT_THAT(refusal_of({"--workers", "1:9", "--shards", "8"}), HasSubstr("at most 8"));
  EXPECT_THAT(refusal_of({"--workers", "0"}), HasSubstr("--workers 0"));
}

TEST(TrainArguments, EachOptimizerHasItsDefaults) {
  const auto of = [](const char* optimizer) {
    const auto arguments = parse_train_arguments({"--optimizer", optimizer});
    return std::vector{arguments.learning_rate(), arguments.momentum_used(),
                       arguments.weight_decay_used()};
  };
  EXPECT_THAT(of("sgd"), testing::ElementsAre(0.05, 0.9, 5e-4));
  EXPECT_THAT(of("adam"), testing::ElementsAre(1e-3, 0, 0));
  EXPECT_THAT(of("adamw"), testing::ElementsAre(1e-3, 0.9, 1e-2));
  EXPECT_THAT(of("rmsprop"), testing::ElementsAre(1e-2, 0, 0));
  EXPECT_THAT(of("adagrad"), testing::ElementsAre(1e-2, 0, 0));
  EXPECT_THAT(of("lars"), testing::ElementsAre(1, 0.9, 5e-4));
  EXPECT_THAT(of("lamb"), testing::ElementsAre(1e-3, 0, 1e-2));
}

TEST(TrainArguments, SayWhereCheckpointsAre) {
  std::string folder = "/tmp/lockstep-arguments-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  EXPECT_THAT(refusal_of({"--resume"}), HasSubstr("--resume from where?"));
  EXPECT_THAT(refusal_of({"--resume", "--checkpoint", "none"}), HasSubstr("--resume from where?"));
  EXPECT_THAT(refusal_of({"--resume", folder}), HasSubstr("it holds no checkpoint"));
  EXPECT_THAT(refusal_of({"--resume", folder + "/x"}), HasSubstr("no such directory"));
  EXPECT_THAT(refusal_of({"--overwrite"}), HasSubstr("--overwrite what?"));
  EXPECT_THAT(refusal_of({"--overwrite", "--resume", "--checkpoint", folder}),
              HasSubstr("give one"));
  EXPECT_EQ(refusal_of({"--overwrite", "--checkpoint", folder}), "");
  EXPECT_EQ(refusal_of({"--resume", "--checkpoint", folder}),
            "");  // begins with step 0 where there is none
  std::ofstream(folder + "/checkpoint.safetensors") << "x";
  const auto arguments = parse_train_arguments({"--resume", folder, "--data", "synthetic"});
  EXPECT_TRUE(arguments.resume);
  EXPECT_EQ(arguments.checkpoint, folder);
  EXPECT_THAT(refusal_of({"--resume", folder, "--checkpoint", "other"}), HasSubstr("give one"));
  EXPECT_EQ(refusal_of({"--resume", folder, "--checkpoint", folder}), "");
  std::filesystem::remove_all(folder);
}

TEST(TrainArguments, CheckpointsComeByStepsOrByTime) {
  const auto of = [](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--data", "synthetic"};
    all.insert(all.end(), more.begin(), more.end());
    const TrainArguments arguments = parse_train_arguments(all);
    return std::pair(arguments.checkpoint_every, arguments.checkpoint_every_s);
  };
  using Interval = std::pair<std::int64_t, double>;
  EXPECT_EQ(of({}), Interval(0, 0));
  EXPECT_EQ(of({"--checkpoint-every", "500"}), Interval(500, 0));
  EXPECT_EQ(of({"--checkpoint-every", "30s"}), Interval(0, 30));
  EXPECT_EQ(of({"--checkpoint-every", "1.5min"}), Interval(0, 90));
  EXPECT_EQ(of({"--checkpoint-every", "2h", "--checkpoint-every", "7"}), Interval(7, 0));
  EXPECT_EQ(parse_train_arguments({"--data", "synthetic"}).keep_checkpoints, 2);
}

}  // namespace
}  // namespace lockstep::app
