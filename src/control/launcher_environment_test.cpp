#include "control/launcher_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <map>

namespace lockstep::control {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

LaunchInfo place_of(const Variables& variables, std::uint32_t user = 1000,
                    const std::string& mpich_proxy = {}) {
  return find_launch_info(
      [&variables](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end() || found->second.empty()) return std::nullopt;
        return found->second;
      },
      user, mpich_proxy);
}

std::string refusal(const Variables& variables) {
  try {
    place_of(variables);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "accepted";
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables kTorch{{"TORCHELASTIC_RUN_ID", "none"},
                       {"RANK", "3"},
                       {"WORLD_SIZE", "4"},
                       {"LOCAL_RANK", "3"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", "29500"},
                       {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Variables kTwoHosts = with(kTorch, {{"WORLD_SIZE", "8"}, {"RANK", "7"}});
const Variables kMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                     {"PMIX_NAMESPACE", "2358181889"}};
const Variables kMpich{{"PMI_RANK", "3"},
                       {"PMI_SIZE", "4"},
                       {"PMI_FD", "8"},
                       {"MPI_LOCALRANKID", "1"},
                       {"MPI_LOCALNRANKS", "2"},
                       {"LOCKSTEP_RENDEZVOUS", "node0:29400"},
                       {"LOCKSTEP_SECRET_FILE", "s"}};
const Variables kSlurmShell{{"SLURM_JOB_ID", "77"},
                            {"SLURM_PROCID", "0"},
                            {"SLURM_NTASKS", "8"},
                            {"SLURM_LOCALID", "0"},
                            {"SLURM_NNODES", "2"}};
const Variables kSlurmStep{{"SLURM_JOB_ID", "77"},
                           {"SLURM_STEP_ID", "0"},
                           {"SLURM_PROCID", "5"},
                           {"SLURM_STEP_NUM_TASKS", "8"},
                           {"SLURM_LOCALID", "5"},
                           {"SLURM_STEP_NUM_NODES", "1"},
                           {"SLURM_STEP_TASKS_PER_NODE", "8"},
                           {"SLURM_NODEID", "0"}};

TEST(LauncherEnvironment, NothingMeansAlone) {
  const LaunchInfo info = place_of({});
  EXPECT_EQ(info.launcher, Launcher::kAlone);
  EXPECT_EQ(info.size, 1);
  EXPECT_EQ(place_of({{"RANK", "3"}}).launcher, Launcher::kAlone);
}

TEST(LauncherEnvironment, OurOwnLauncherHostsTheRendezvous) {
  const LaunchInfo info = place_of({{"LOCKSTEP_RENDEZVOUS", "unix:lockstep-x"},
                                    {"LOCKSTEP_SECRET_FD", "7"},
                                    {"RANK", "1"},
                                    {"WORLD_SIZE", "4"},
                                    {"LOCAL_RANK", "1"},
                                    {"LOCAL_WORLD_SIZE", "4"}});
  EXPECT_EQ(info.launcher, Launcher::kLockstep);
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.local_size, 4);
  EXPECT_EQ(info.secret_fd, 7);
  EXPECT_FALSE(info.rank_0_hosts);
  EXPECT_EQ(to_string(info.rendezvous), "unix:lockstep-x");
}

TEST(LauncherEnvironment, AWorkerOfAJobThatMayGrowHasAPlaceAmongMore) {
  Variables variables{{"LOCKSTEP_RENDEZVOUS", "unix:lockstep-x"},
                      {"LOCKSTEP_SECRET_FD", "7"},
                      {"RANK", "0"},
                      {"WORLD_SIZE", "1"},
                      {"LOCAL_RANK", "0"},
                      {"LOCAL_WORLD_SIZE", "1"},
                      {"LOCKSTEP_ELASTIC", "1"},
                      {"LOCKSTEP_PLACES", "8"}};
  EXPECT_EQ(place_of(variables).size, 8) << "it is not alone: others may join";
  EXPECT_EQ(place_of(variables).local_size, 8);
  variables["LOCKSTEP_PLACES"] = "0";
  EXPECT_THROW(place_of(variables), BadInput);
}

TEST(LauncherEnvironment, WorkersOfOneTorchrunMeetAndOthersDoNot) {
  const LaunchInfo info = place_of(kTorch);
  EXPECT_EQ(info.launcher, Launcher::kTorchrun);
  EXPECT_EQ(info.rank, 3);
  EXPECT_TRUE(info.rank_0_hosts);
  const Address same = place_of(with(kTorch, {{"RANK", "0"}, {"LOCAL_RANK", "0"}})).rendezvous;
  EXPECT_EQ(info.rendezvous, same);
  EXPECT_NE(place_of(with(kTorch, {{"MASTER_PORT", "29501"}})).rendezvous, same);
  EXPECT_NE(place_of(with(kTorch, {{"TORCHELASTIC_RUN_ID", "x"}})).rendezvous, same);
  EXPECT_NE(place_of(with(kTorch, {{"TORCHELASTIC_RESTART_COUNT", "1"}})).rendezvous, same);
  EXPECT_NE(place_of(kTorch, 1001).rendezvous, same);
}

TEST(LauncherEnvironment, SeveralHostsWithoutHelpSayWhatToSet) {
  const std::string message = refusal(kTwoHosts);
  EXPECT_THAT(message, HasSubstr("LOCKSTEP_RENDEZVOUS=HOST:PORT"));
  EXPECT_THAT(message, HasSubstr("LOCKSTEP_SECRET_FILE"));
  EXPECT_THAT(message, testing::Not(HasSubstr("\n")));
  EXPECT_THAT(refusal(with(kTwoHosts, {{"LOCKSTEP_RENDEZVOUS", "node0:29400"}})),
              HasSubstr("LOCKSTEP_SECRET_FILE"));
  EXPECT_THAT(refusal(with(kTwoHosts, {{"LOCKSTEP_RENDEZVOUS", "unix:x"}})),
              HasSubstr("one host only"));
}

TEST(LauncherEnvironment, SeveralHostsWithHelpMeetThere) {
  const LaunchInfo info = place_of(with(kTwoHosts, {{"LOCKSTEP_RENDEZVOUS", "node0:29400"},
                                                    {"LOCKSTEP_SECRET_FILE", "/home/me/secret"},
                                                    {"LOCKSTEP_INTERFACE", "eth1"}}));
  EXPECT_EQ(info.rendezvous, (Address{Address::Kind::kTcp, "node0", 29400}));
  EXPECT_EQ(info.secret_file, "/home/me/secret");
  EXPECT_EQ(info.interface_name, "eth1");
  EXPECT_TRUE(info.rank_0_hosts);
}

TEST(LauncherEnvironment, OpenMpiIsToldApartByItsNamespace) {
  const LaunchInfo info = place_of(kMpi);
  EXPECT_EQ(info.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(info.rank, 1);
  EXPECT_NE(info.rendezvous, place_of(with(kMpi, {{"PMIX_NAMESPACE", "1"}})).rendezvous);
  EXPECT_THAT(refusal(with(kMpi, {{"PMIX_NAMESPACE", ""}})),
              HasSubstr("LOCKSTEP_RENDEZVOUS=unix:"));
}

TEST(LauncherEnvironment, MpichIsToldApartByTheProcessThatStartedTheWorkers) {
  const LaunchInfo info = place_of(kMpich);
  EXPECT_STREQ(name(info.launcher), "mpich");
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.size, 4);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_size, 2);
  const auto one_host =
      with(kMpich, {{"MPI_LOCALNRANKS", "4"}, {"LOCKSTEP_RENDEZVOUS", ""}, {"PMI_RANK", "1"}});
  EXPECT_THAT(refusal(one_host), HasSubstr("LOCKSTEP_RENDEZVOUS=unix:"));
  EXPECT_NE(place_of(one_host, 1000, "17").rendezvous, place_of(one_host, 1000, "18").rendezvous);
  EXPECT_THAT(refusal(with(kMpich, {{"PMI_SIZE", ""}})), HasSubstr("PMI_SIZE is not set"));
}

TEST(LauncherEnvironment, ASlurmStepIsAWorld) {
  const LaunchInfo info = place_of(kSlurmStep);
  EXPECT_EQ(info.launcher, Launcher::kSlurm);
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.size, 8);
  EXPECT_EQ(info.local_size, 8);
  EXPECT_NE(info.rendezvous, place_of(with(kSlurmStep, {{"SLURM_STEP_ID", "1"}})).rendezvous);
}

TEST(LauncherEnvironment, AShellOfASlurmAllocationIsAlone) {
  EXPECT_EQ(place_of(kSlurmShell).launcher, Launcher::kAlone);
  for (const char* step : {"4294967290", "4294967291", "4294967292"}) {
    EXPECT_EQ(place_of(with(kSlurmShell, {{"SLURM_STEP_ID", step}})).launcher, Launcher::kAlone);
  }
}

TEST(LauncherEnvironment, ASlurmStepOnSeveralHostsKnowsItsLocalSize) {
  const LaunchInfo info = place_of(with(kSlurmStep, {{"SLURM_STEP_NUM_NODES", "3"},
                                                     {"SLURM_STEP_TASKS_PER_NODE", "3(x2),2"},
                                                     {"SLURM_NODEID", "1"},
                                                     {"SLURM_LOCALID", "2"},
                                                     {"LOCKSTEP_RENDEZVOUS", "n0:1234"},
                                                     {"LOCKSTEP_SECRET_FILE", "s"}}));
  EXPECT_EQ(info.local_rank, 2);
  EXPECT_EQ(info.local_size, 3);
}

TEST(LauncherEnvironment, SlurmsNotationOfTasks) {
  EXPECT_EQ(slurm_tasks_of_node("8", 0), 8);
  EXPECT_EQ(slurm_tasks_of_node("2(x3),1", 2), 2);
  EXPECT_EQ(slurm_tasks_of_node("2(x3),1", 3), 1);
  for (const char* text :
       {"", "x", "2(x", "2(x)", "2(x0)", "0", "-1", "2(x3)1", "2(x99999999999)"}) {
    EXPECT_EQ(slurm_tasks_of_node(text, 5), std::nullopt) << text;
  }
  EXPECT_EQ(slurm_tasks_of_node("2(x3)", 3), std::nullopt);
}

TEST(LauncherEnvironment, TheInnermostLauncherCounts) {
  EXPECT_EQ(place_of(with(kSlurmStep, kTorch)).launcher, Launcher::kTorchrun);
  EXPECT_EQ(place_of(with(kSlurmStep, kMpi)).launcher, Launcher::kOpenMpi);
  EXPECT_EQ(place_of(with(kSlurmStep, kMpich)).launcher, Launcher::kMpich);
  const auto slurms_own_pmi = with(kSlurmStep, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}});
  EXPECT_EQ(place_of(slurms_own_pmi).launcher, Launcher::kSlurm);
}

TEST(LauncherEnvironment, VariablesSetByHandWorkWithAMeetingPlace) {
  const Variables by_hand{{"RANK", "1"}, {"WORLD_SIZE", "2"}};
  EXPECT_THAT(refusal(by_hand), HasSubstr("LOCKSTEP_RENDEZVOUS"));
  const LaunchInfo info = place_of(with(by_hand, {{"LOCKSTEP_RENDEZVOUS", "unix:mine"}}));
  EXPECT_EQ(info.launcher, Launcher::kEnvironment);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_size, 2);
  EXPECT_EQ(place_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).size, 1);
}

TEST(LauncherEnvironment, NumbersThatCannotBeAreBadInput) {
  EXPECT_THAT(refusal(with(kTorch, {{"RANK", "4"}})), HasSubstr("rank 4 of 4"));
  EXPECT_THAT(refusal(with(kTorch, {{"RANK", "-1"}})), HasSubstr("RANK=-1"));
  EXPECT_THAT(refusal(with(kTorch, {{"WORLD_SIZE", "many"}})), HasSubstr("WORLD_SIZE=many"));
  EXPECT_THAT(refusal(with(kTorch, {{"LOCAL_RANK", ""}})), HasSubstr("LOCAL_RANK is not set"));
  EXPECT_THAT(refusal(with(kTorch, {{"LOCKSTEP_RENDEZVOUS", "nonsense"}})), HasSubstr("no port"));
}

TEST(ParseSeconds, TakesFractionsAndNamesWhatIsWrong) {
  using std::chrono::milliseconds;
  EXPECT_EQ(parse_seconds("30", "T"), milliseconds(30'000));
  EXPECT_EQ(parse_seconds("0.5", "T"), milliseconds(500));
  for (const char* text : {"", "0", "-1", "x", "1x", "nan", "inf", "1e9"}) {
    EXPECT_THROW(parse_seconds(text, "T"), BadInput) << text;
  }
}

}  // namespace
}  // namespace lockstep::control
