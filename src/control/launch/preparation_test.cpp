#include "control/launch/preparation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace lockstep::control {
namespace {

using testing::Contains;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

JobEnvironment four_workers() {
  JobEnvironment job;
  job.map = {0, {{"here", 4}}};
  job.start.name = "lockstep-1-ab";
  job.start.master = "127.0.0.1";
  job.start.master_port = 12345;
  job.start.rendezvous = "unix:lockstep-1-ab";
  job.secret_fd = 5;
  return job;
}

TEST(WorkerEnvironmentTest, HoldsTorchrunsVariablesAndOurs) {
  EXPECT_THAT(worker_environment({"HOME=/home/me"}, four_workers(), 3, {4}),
              IsSupersetOf({"HOME=/home/me",
                            "RANK=3",
                            "LOCAL_RANK=3",
                            "WORLD_SIZE=4",
                            "LOCAL_WORLD_SIZE=4",
                            "GROUP_RANK=0",
                            "GROUP_WORLD_SIZE=1",
                            "ROLE_RANK=3",
                            "ROLE_NAME=default",
                            "ROLE_WORLD_SIZE=4",
                            "MASTER_ADDR=127.0.0.1",
                            "MASTER_PORT=12345",
                            "TORCHELASTIC_RESTART_COUNT=0",
                            "TORCHELASTIC_MAX_RESTARTS=0",
                            "TORCHELASTIC_RUN_ID=lockstep-1-ab",
                            "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
                            "LOCKSTEP_RENDEZVOUS=unix:lockstep-1-ab",
                            "LOCKSTEP_SECRET_FD=5",
                            "OMP_NUM_THREADS=1",
                            "OPENBLAS_NUM_THREADS=1"}));
}

TEST(WorkerEnvironmentTest, NoAgentStoreIsAnnouncedEvenUnderTorchrun) {
  const auto variables = worker_environment(
      {"TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_ERROR_FILE=/tmp/x", "RANK=9"},
      four_workers(), 0, {4});
  EXPECT_THAT(variables, IsSupersetOf({"TORCHELASTIC_USE_AGENT_STORE=False", "RANK=0"}));
  EXPECT_THAT(variables, Not(Contains(StartsWith("TORCHELASTIC_ERROR_FILE="))));
}

TEST(WorkerEnvironmentTest, ExportedThreadsWinOverTheDefaultAndAnOptionOverThem) {
  JobEnvironment job = four_workers();
  EXPECT_THAT(worker_environment({"OMP_NUM_THREADS=6"}, job, 0, {4}),
              IsSupersetOf({"OMP_NUM_THREADS=6", "OPENBLAS_NUM_THREADS=1"}));
  RunOptions options;
  options.threads = 3;
  job.variables = as_variables(options);
  EXPECT_THAT(worker_environment({"OMP_NUM_THREADS=6"}, job, 0, {4}),
              IsSupersetOf({"OMP_NUM_THREADS=3", "OPENBLAS_NUM_THREADS=3"}));
  options.variables = {{"OMP_NUM_THREADS", "2"}};
  job.variables = as_variables(options);
  EXPECT_THAT(worker_environment({"OMP_NUM_THREADS=6"}, job, 0, {4}),
              IsSupersetOf({"OMP_NUM_THREADS=2", "OPENBLAS_NUM_THREADS=3"}));
}

TEST(WorkerEnvironmentTest, VariablesOfTheUserWinOverExportedOnes) {
  JobEnvironment job = four_workers();
  job.variables = {{"MASTER_PORT", "29500"}, {"MODE", "a=b"}, {"MODE", "c=d"}};
  EXPECT_THAT(worker_environment({"MODE=old"}, job, 0, {4}),
              IsSupersetOf({"MASTER_PORT=29500", "MODE=c=d"}));
}

TEST(WorkerEnvironmentTest, WhatOptionsSetOnlyWhenAskedFor) {
  JobEnvironment job = four_workers();
  const auto without = worker_environment({"LOCKSTEP_ENGINE=tcp"}, job, 0, {4});
  EXPECT_THAT(without, Contains("LOCKSTEP_ENGINE=tcp"));
  EXPECT_THAT(without, Not(Contains(StartsWith("LOCKSTEP_TIMEOUT="))));
  EXPECT_THAT(without, Not(Contains(StartsWith("LOCKSTEP_DEVICE="))));
  RunOptions options;
  options.timeout_s = 20;
  options.engine = "shm";
  options.device = DeviceKind::kCpu;
  options.wire = Wire::kPlain;
  job.variables = as_variables(options);
  EXPECT_THAT(worker_environment({"LOCKSTEP_ENGINE=tcp", "LOCKSTEP_DEVICE=cuda"}, job, 0, {4}),
              IsSupersetOf({"LOCKSTEP_ENGINE=shm", "LOCKSTEP_TIMEOUT=20", "LOCKSTEP_DEVICE=cpu",
                            "LOCKSTEP_WIRE=plain"}));
}

TEST(WorkerEnvironmentTest, RanksCountOverAllHosts) {
  JobEnvironment job = four_workers();
  job.map = {1, {{"a", 3}, {"b", 2}, {"c", 1}}};
  job.start.master = "10.0.0.1";
  EXPECT_THAT(
      worker_environment({}, job, 4, {2}),
      IsSupersetOf({"RANK=4", "LOCAL_RANK=1", "WORLD_SIZE=6", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1",
                    "GROUP_WORLD_SIZE=3", "ROLE_RANK=4", "MASTER_ADDR=10.0.0.1"}));
}

TEST(WorkerEnvironmentTest, OnlyWorkersThatMayLeaveAreToldSo) {
  JobEnvironment job = four_workers();
  const std::vector<std::string> around = {"LOCKSTEP_ELASTIC=1", "LOCKSTEP_NEWS_FD=9"};
  const auto fixed = worker_environment(around, job, 0, {4});
  EXPECT_THAT(fixed, Not(Contains(StartsWith("LOCKSTEP_ELASTIC="))));
  EXPECT_THAT(fixed, Not(Contains(StartsWith("LOCKSTEP_NEWS_FD="))));
  job.news_fd = 7;
  job.max_restarts = 3;
  EXPECT_THAT(
      worker_environment(around, job, 0, {4}),
      IsSupersetOf({"LOCKSTEP_ELASTIC=1", "LOCKSTEP_NEWS_FD=7", "TORCHELASTIC_MAX_RESTARTS=3"}));
}

TEST(WorkerEnvironmentTest, AWorkerThatIsStartedLaterIsToldHowThingsAreThen) {
  JobEnvironment job = four_workers();
  job.map = {0, {{"here", 8}}};
  job.news_fd = 7;
  EXPECT_THAT(worker_environment({}, job, 5, {.workers = 6, .restarts = 2}),
              IsSupersetOf({"RANK=5", "WORLD_SIZE=6", "LOCAL_WORLD_SIZE=6", "LOCKSTEP_PLACES=8",
                            "TORCHELASTIC_RESTART_COUNT=2"}));
}

TEST(WorkerEnvironmentTest, EachVariableComesOnce) {
  const auto variables =
      worker_environment({"A=1", "A=2", "RANK=7", "broken"}, four_workers(), 0, {4});
  std::map<std::string, int> count;
  for (const auto& text : variables) ++count[text.substr(0, text.find('='))];
  for (const auto& [name, times] : count) EXPECT_EQ(times, 1) << name;
}

}  // namespace
}  // namespace lockstep::control
