#include "app/train/open_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <functional>

#include "control/device_choice.h"

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
  TrainArguments fresh = arguments;
  make_open_choices(arguments, {{"threads", "3"}, {"flush_denormal", "on"}, {"onednn", "off"}});
  EXPECT_EQ(arguments.threads, 3);
  EXPECT_EQ(arguments.flush_denormal, Switch::kOn);
  EXPECT_EQ(arguments.onednn, Switch::kOff);
  EXPECT_EQ(arguments.deterministic, Switch::kOn);
  make_open_choices(fresh, {});
  EXPECT_EQ(fresh.threads, 1);
  EXPECT_EQ(fresh.flush_denormal, Switch::kOff);
  EXPECT_EQ(fresh.onednn, Switch::kOpen);
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

// GPUs of which only the number is there.
class MadeUpGpus : public cuda::Gpus {
 public:
  explicit MadeUpGpus(int count) : count_(count) {}
  cuda::FoundGpus find() override { return {count_, count_ > 0 ? "" : "no GPU at all"}; }
  void use(int /*index*/) override {}
  std::string model(int /*index*/) override { return "made up"; }

 private:
  int count_;
};

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const BadInput& error) {
    return error.what();
  }
  return "accepted";
}

TEST(OpenChoices, WorkersOnGpusAreCountedByThem) {
  MadeUpGpus three(3);
  TrainArguments arguments = with({"--device", "cuda", "--shards", "8"});
  make_open_choices(arguments, {}, three);
  EXPECT_EQ(arguments.workers, 3);
  TrainArguments few = with({"--device", "cuda", "--shards", "2"});
  make_open_choices(few, {}, three);
  EXPECT_EQ(few.workers, 2);
  TrainArguments asked = with({"--device", "cuda", "-n", "1"});
  make_open_choices(asked, {}, three);
  EXPECT_EQ(asked.workers, 1);
  MadeUpGpus none(0);
  TrainArguments without = with({"--device", "cuda"});
  EXPECT_EQ(refusal([&] { make_open_choices(without, {}, none); }), "--device cuda: no GPU at all");
  TrainArguments uneven = with({"--device", "cuda", "--accumulate", "3", "--global-batch", "8"});
  EXPECT_THAT(refusal([&] { make_open_choices(uneven, {}, three); }),
              HasSubstr("--global-batch 8 cannot be divided among 3 shards"));
}

TEST(OpenChoices, MoreWorkersThanGpusAreRefusedUnlessTheyShare) {
  MadeUpGpus one(1);
  const auto refused = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"-n", "4"});
    return refusal([&] { check_gpus(with(options), one); });
  };
  EXPECT_THAT(refused({"--device", "cuda"}),
              HasSubstr("--device cuda: 4 workers and 1 GPU on this host: use at most 1 worker"));
  EXPECT_EQ(refused({"--device", "cuda", "--share-gpus"}), "accepted");
  EXPECT_EQ(refused({"--device", "cpu"}), "accepted");
}

TEST(OpenChoices, TheDeviceAndThePrecisionAreTheCheckpointsElseAskedFor) {
  MadeUpGpus one(1);
  const auto chosen = [&](std::vector<std::string> options, const SavedJob& saved) {
    options.insert(options.end(), {"--resume", "--checkpoint", "run"});
    TrainArguments arguments = with(options);
    make_open_choices(arguments, saved, one);
    return std::string(control::name(*arguments.device)) + " " + name(arguments.precision);
  };
  EXPECT_EQ(chosen({}, {}), "cpu float32");
  EXPECT_EQ(chosen({}, {{"device", "cuda NVIDIA H200 sm_90"}, {"precision", "bf16"}}), "cuda bf16");
  EXPECT_EQ(chosen({}, {{"device", "cuda NVIDIA H200 sm_90"}, {"precision", "bf16-held"}}),
            "cuda bf16-held");
  EXPECT_EQ(chosen({"--device", "cpu"}, {{"device", "cuda"}, {"precision", "bf16-held"}}),
            "cpu bf16-held");
  EXPECT_EQ(chosen({}, {{"device", "cpu"}, {"precision", "fp16"}}), "cpu fp16");
  EXPECT_EQ(chosen({}, {{"device", "cpu"}, {"precision", "float32"}}), "cpu float32");
  EXPECT_EQ(chosen({"--device", "cpu", "--precision", "float32"},
                   {{"device", "cuda NVIDIA H200 sm_90"}, {"precision", "bf16"}}),
            "cpu float32");
  EXPECT_EQ(with({"--engine", "nccl"}).device, DeviceKind::kCuda);
  EXPECT_EQ(with({}).device, DeviceKind::kCpu);
}

TEST(OpenChoices, AreToldToTheWorkers) {
  MadeUpGpus two(2);
  TrainArguments arguments = with({"--device", "cuda", "--precision", "bf16"});
  make_open_choices(arguments, {}, two);
  TrainArguments told = with(as_options(arguments));
  EXPECT_EQ(told.device, DeviceKind::kCuda);
  EXPECT_EQ(told.precision, Precision::kBf16);
  EXPECT_EQ(told.workers, 2);
}

TEST(OpenChoices, CublasIsToldToBeDeterministicWhereItMatters) {
  const auto variables = [](std::vector<std::string> options) {
    return worker_variables(with(options));
  };
  using testing::ElementsAre;
  using testing::Pair;
  const auto workspace = Pair("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
  EXPECT_THAT(variables({"--device", "cuda", "--deterministic", "on"}), ElementsAre(workspace));
  EXPECT_THAT(variables({"--device", "cuda", "--deterministic", "on", "--share-gpus"}),
              ElementsAre(Pair("LOCKSTEP_SHARE_GPUS", "1"), workspace));
  EXPECT_THAT(variables({"--device", "cuda", "--deterministic", "off"}), testing::IsEmpty());
  EXPECT_THAT(variables({"--device", "cpu", "--deterministic", "on"}), testing::IsEmpty());
}

TEST(TrainArgumentsTest, WhatIsForOtherDevicesIsRefused) {
  const auto refused = [](std::vector<std::string> options) {
    return refusal([&] { with(options); });
  };
  EXPECT_THAT(refused({"--device", "gpu"}), HasSubstr("--device gpu: choose from cpu, cuda"));
  EXPECT_THAT(refused({"--precision", "fp8"}), HasSubstr("choose from auto, float32, bf16"));
  EXPECT_EQ(refused({"--device", "cpu", "--precision", "bf16-held"}), "accepted");
  EXPECT_THAT(refused({"--loss-scale", "-1"}), HasSubstr("--loss-scale"));
  EXPECT_EQ(with({"--precision", "fp16"}).loss_scale_used(), 65536);
  EXPECT_EQ(with({"--precision", "fp16", "--loss-scale", "0"}).loss_scale_used(), 0);
  EXPECT_EQ(with({"--precision", "bf16"}).loss_scale_used(), 0);
  EXPECT_THAT(refused({"--graphs", "maybe"}), HasSubstr("choose from auto, on, off"));
  EXPECT_THAT(refused({"--device", "cuda", "--engine", "tcp"}),
              HasSubstr("--engine tcp moves no memory of GPUs"));
  EXPECT_THAT(refused({"--device", "cpu", "--engine", "nccl"}), HasSubstr("--engine nccl is for"));
  EXPECT_THAT(refused({"--share-gpus"}), HasSubstr("--share-gpus is for GPUs"));
  EXPECT_THAT(refused({"--graphs", "on"}), HasSubstr("--graphs on is for GPUs"));
  EXPECT_EQ(refused({"--device", "cuda", "--graphs", "on", "--precision", "bf16"}), "accepted");
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
