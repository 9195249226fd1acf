#include "control/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/comm.h>
#include <lockstep/errors.h>

#include <map>

namespace lockstep::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

Lookup variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

LaunchInfo place_of(int rank, int size, int local_rank, int local_size) {
  LaunchInfo info;
  info.rank = rank;
  info.size = size;
  info.local_rank = local_rank;
  info.local_size = local_size;
  return info;
}

template <typename Failure>
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Failure& error) {
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  return "accepted";
}

TEST(DeviceAsked, IsTheOptionsElseTheVariablesElseTheEngines) {
  const auto nothing = variables({});
  EXPECT_EQ(device_asked("", "", nothing), DeviceKind::kCpu);
  EXPECT_EQ(device_asked("", "shm", nothing), DeviceKind::kCpu);
  EXPECT_EQ(device_asked("", "nccl", nothing), DeviceKind::kCuda);
  EXPECT_EQ(device_asked("cuda", "", nothing), DeviceKind::kCuda);
  EXPECT_EQ(device_asked("cuda", "tcp", nothing), DeviceKind::kCuda);
  const auto cuda = variables({{"LOCKSTEP_DEVICE", "cuda"}});
  EXPECT_EQ(device_asked("", "", cuda), DeviceKind::kCuda);
  EXPECT_EQ(device_asked("cpu", "", cuda), DeviceKind::kCpu);
}

TEST(DeviceAsked, WhatThereIsNotAndWhatContradictsIsRefused) {
  const auto named = [](const std::string& device, const std::string& engine, const char* said) {
    return refusal<BadInput>([&] {
      device_asked(device, engine, variables({{"LOCKSTEP_DEVICE", said}}));
    });
  };
  EXPECT_THAT(named("tpu", "", "cpu"), HasSubstr("JoinOptions::device tpu: there is no such"));
  EXPECT_THAT(named("", "", "cuda:1"), HasSubstr("LOCKSTEP_DEVICE cuda:1: there is no such"));
  EXPECT_THAT(named("cpu", "nccl", "cuda"), HasSubstr("the nccl engine is for GPUs"));
  EXPECT_THAT(named("", "nccl", "cpu"), HasSubstr("the nccl engine is for GPUs"));
}

TEST(ChooseGpu, AWorkersGpuHasItsLocalRank) {
  for (int local = 0; local < 4; ++local) {
    const auto choice = choose_gpu(place_of(4 + local, 8, local, 4), {8, ""}, variables({}));
    EXPECT_EQ(choice.index, local);
    EXPECT_THAT(choice.variables, IsEmpty());
  }
}

TEST(ChooseGpu, WithoutOneTheReasonIsUnavailable) {
  EXPECT_EQ(refusal<Unavailable>([] {
              choose_gpu({}, {0, "no driver"}, variables({}));
            }),
            "no driver");
}

TEST(ChooseGpu, FewerGpusThanWorkersAreRefusedOnEveryWorker) {
  for (int rank = 0; rank < 4; ++rank) {
    const LaunchInfo info = place_of(rank, 4, rank, 4);
    EXPECT_EQ(refusal<BadInput>([&] {
                choose_gpu(info, {1, ""}, variables({}));
              }),
              "4 workers and 1 GPU on this host: use at most 1 worker, or for tests "
              "LOCKSTEP_SHARE_GPUS=1");
  }
  const auto hidden = variables({{"CUDA_VISIBLE_DEVICES", "2,5"}, {"LOCKSTEP_SHARE_GPUS", "0"}});
  EXPECT_THAT(refusal<BadInput>([&] {
                choose_gpu(place_of(0, 3, 0, 3), {2, ""}, hidden);
              }),
              HasSubstr("3 workers and 2 GPUs on this host (CUDA_VISIBLE_DEVICES=2,5): use at most "
                        "2 workers"));
}

TEST(ChooseGpu, SharingTakesTurnsAndTellsNcclOfAHostForEach) {
  const auto share = variables({{"LOCKSTEP_SHARE_GPUS", "1"}});
  for (int rank = 0; rank < 5; ++rank) {
    const auto choice = choose_gpu(place_of(rank, 5, rank, 5), {2, ""}, share);
    EXPECT_EQ(choice.index, rank % 2);
    EXPECT_THAT(choice.variables,
                ElementsAre(Pair("NCCL_HOSTID", "lockstep-rank-" + std::to_string(rank)),
                            Pair("NCCL_SOCKET_IFNAME", "lo")));
  }
  // Other hosts are not behind the loopback; and a worker that has a GPU for itself needs no tricks.
  EXPECT_THAT(choose_gpu(place_of(3, 4, 1, 2), {1, ""}, share).variables,
              ElementsAre(Pair("NCCL_HOSTID", "lockstep-rank-3")));
  EXPECT_THAT(choose_gpu(place_of(1, 2, 1, 2), {2, ""}, share).variables, IsEmpty());
  EXPECT_THAT(
      refusal<BadInput>([] {
        choose_gpu(place_of(0, 2, 0, 2), {1, ""}, variables({{"LOCKSTEP_SHARE_GPUS", "yes"}}));
      }),
      HasSubstr("LOCKSTEP_SHARE_GPUS=yes: give 1 or 0"));
}

TEST(ChooseGpu, WhereSlurmShowsEachWorkerItsOwnItIsTheFirst) {
  const auto slurm = variables({{"SLURM_GPUS_PER_TASK", "1"}, {"CUDA_VISIBLE_DEVICES", "3"}});
  LaunchInfo info = place_of(3, 4, 3, 4);
  EXPECT_THROW(choose_gpu(info, {1, ""}, slurm),
               BadInput);  // workers of another launcher, in one task
  info.launcher = Launcher::kSlurm;
  EXPECT_EQ(choose_gpu(info, {1, ""}, slurm).index, 0);
}

}  // namespace
}  // namespace lockstep::control
