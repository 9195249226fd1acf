#include "control/launch/job_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <utility>

namespace lockstep::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using How = WorkerEnd::How;
using Cause = JobState::Cause;

const EndRules kRules = {.grace = std::chrono::seconds(10),
                         .after_failure = std::chrono::milliseconds(1500),
                         .for_the_cause = std::chrono::milliseconds(1000),
                         .explained_codes = {1, 2},
                         .stopped_code = 75};
const JobState::Clock::time_point kStart{std::chrono::hours(1)};

WorkerEnd exited(int rank, int code) {
  return {rank, WorkerEnd::How::kExited, code};
}
WorkerEnd killed(int rank, int signal) {
  return {rank, WorkerEnd::How::kKilled, signal};
}

TEST(WorkerEndTest, WaitStatusIsReadAsAShellDoes) {
  EXPECT_EQ(worker_end(2, W_EXITCODE(7, 0)), exited(2, 7));
  EXPECT_EQ(worker_end(2, W_EXITCODE(0, SIGSEGV)), killed(2, SIGSEGV));
  EXPECT_EQ(exit_code(exited(0, 7)), 7);
  EXPECT_EQ(exit_code(killed(0, SIGKILL)), 137);
  EXPECT_EQ(exit_code({0, How::kNotStarted, ENOENT}), 127);
  EXPECT_EQ(exit_code({0, How::kNotStarted, ENOEXEC}), 126);
  EXPECT_EQ(exit_code({0, How::kNotStarted, EAGAIN}), 1);
}

TEST(WorkerEndTest, DescriptionNamesCodeOrSignal) {
  EXPECT_EQ(describe(exited(0, 7)), "exited with code 7");
  EXPECT_THAT(describe(killed(0, SIGSEGV)), HasSubstr("SIGSEGV"));
  EXPECT_THAT(describe(killed(0, SIGKILL)), HasSubstr("dmesg"));
  EXPECT_THAT(describe(killed(0, 40)), HasSubstr("signal 40"));
}

WorkerEnd cause_of(const std::vector<WorkerEnd>& together) {
  Blame blame;
  blame.on_ends(together);
  return blame.verdict()->cause;
}

TEST(BlameTest, SuccessIsNoFailure) {
  Blame blame;
  blame.on_ends({exited(0, 0), exited(1, 0)});
  EXPECT_FALSE(blame.verdict());
}

TEST(BlameTest, CrashIsBlamedBeforeTheExitOfItsPeers) {
  EXPECT_EQ(cause_of({exited(0, 1), exited(1, 0), killed(2, SIGSEGV)}), killed(2, SIGSEGV));
  EXPECT_EQ(cause_of({exited(1, 3), exited(0, 1)}), exited(1, 3));
  EXPECT_EQ(cause_of({killed(1, SIGABRT), killed(0, SIGSEGV)}), killed(1, SIGABRT));
}

TEST(BlameTest, WithoutAWordTheFirstFailureIsTheCause) {
  Blame blame;
  blame.on_ends({exited(0, 1)});
  EXPECT_FALSE(blame.verdict()->open);
  blame.on_ends({killed(1, SIGSEGV)});
  EXPECT_EQ(blame.verdict()->cause, exited(0, 1));
  EXPECT_EQ(blame.verdict()->lost, std::nullopt);
}

TEST(BlameTest, WhoLostAnotherWaitsForThatOnesEnd) {
  Blame blame;
  blame.on_loss(0, 1);
  blame.on_ends({exited(0, 1)});
  EXPECT_TRUE(blame.verdict()->open);
  EXPECT_EQ(blame.verdict()->cause, exited(0, 1));
  EXPECT_EQ(blame.verdict()->lost, 1);
  blame.on_ends({exited(1, 7)});
  EXPECT_FALSE(blame.verdict()->open);
  EXPECT_EQ(blame.verdict()->cause, exited(1, 7));
  EXPECT_EQ(blame.verdict()->lost, std::nullopt);
}

TEST(BlameTest, OfThoseThatEndTogetherTheOneThatLostNobodyIsFirst) {
  Blame blame;
  blame.on_loss(0, 2);
  blame.on_loss(1, 2);
  blame.on_ends({exited(0, 1), exited(1, 1), exited(2, 7)});
  EXPECT_EQ(blame.verdict()->cause, exited(2, 7));
}

TEST(BlameTest, TheTrailIsFollowedToItsEnd) {
  Blame blame;
  blame.on_loss(0, 1);
  blame.on_loss(1, 2);
  blame.on_ends({exited(0, 1)});
  blame.on_ends({exited(1, 1)});
  EXPECT_TRUE(blame.verdict()->open);
  EXPECT_EQ(blame.verdict()->lost, 2);
  blame.on_ends({killed(2, SIGKILL)});
  EXPECT_EQ(blame.verdict()->cause, killed(2, SIGKILL));
}

TEST(BlameTest, AWorkerThatLeftInPeaceIsNamedAsLost) {
  Blame blame;
  blame.on_ends({exited(1, 0)});
  blame.on_loss(0, 1);
  blame.on_ends({exited(0, 1)});
  EXPECT_FALSE(blame.verdict()->open);
  EXPECT_EQ(blame.verdict()->cause, exited(0, 1));
  EXPECT_EQ(blame.verdict()->lost, 1);
  EXPECT_EQ(blame.end_of(1), exited(1, 0));
}

TEST(BlameTest, AWorkerThatHasJoinedAgainAnswersForItself) {
  Blame blame;
  blame.on_loss(0, 1);
  blame.on_loss(0, std::nullopt);
  blame.on_loss(1, 0);
  blame.on_ends({exited(1, 1)});
  blame.on_ends({exited(0, 3)});
  EXPECT_EQ(blame.verdict()->cause, exited(0, 3));
}

TEST(BlameTest, WorkersThatLostEachOtherEndTheTrail) {
  Blame blame;
  blame.on_loss(0, 1);
  blame.on_loss(1, 0);
  blame.on_ends({exited(1, 3)});
  EXPECT_FALSE(blame.verdict()->open);
  EXPECT_EQ(blame.verdict()->cause, exited(1, 3));
  EXPECT_EQ(blame.verdict()->lost, 0);
}

TEST(JobStateTest, AllWorkersEndingWellIsZero) {
  JobState state(3, kRules);
  EXPECT_FALSE(state.on_ends({exited(1, 0)}, kStart).release);
  EXPECT_FALSE(state.released());
  EXPECT_TRUE(state.on_ends({exited(0, 0), exited(2, 0)}, kStart).release);
  EXPECT_EQ(state.exit_code(), 0);
  EXPECT_EQ(state.cause(), Cause::kNone);
}

TEST(JobStateTest, FirstFailureEndsTheOthersAndGivesTheExitCode) {
  JobState state(3, kRules);
  const auto orders = state.on_ends({exited(1, 7)}, kStart);
  EXPECT_THAT(orders.forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_FALSE(orders.release);
  EXPECT_EQ(state.deadline(), kStart + kRules.after_failure);
  EXPECT_TRUE(state.on_ends({killed(0, SIGTERM), killed(2, SIGSEGV)}, kStart).release);
  EXPECT_EQ(state.exit_code(), 7);
  EXPECT_EQ(state.failure()->cause, exited(1, 7));
}

TEST(JobStateTest, OthersThatDoNotEndInTimeAreKilled) {
  JobState state(2, kRules);
  state.on_ends({exited(1, 7)}, kStart);
  EXPECT_FALSE(state.on_time(kStart + std::chrono::seconds(1)).release);
  EXPECT_TRUE(state.on_time(kStart + kRules.after_failure).release);
  EXPECT_EQ(state.deadline(), std::nullopt);
}

TEST(JobStateTest, LastWorkerFailingIsAFailureToo) {
  JobState state(1, kRules);
  EXPECT_TRUE(state.on_ends({killed(0, SIGABRT)}, kStart).release);
  EXPECT_EQ(state.exit_code(), 134);
}

TEST(JobStateTest, AWorkerThatWasLostHasAMomentForItsOwnEnd) {
  JobState state(3, kRules);
  state.on_loss(2, 1);
  EXPECT_THAT(state.on_ends({exited(2, 1)}, kStart).forward, IsEmpty());
  EXPECT_EQ(state.lost(), 1);
  EXPECT_EQ(state.deadline(), kStart + kRules.for_the_cause);
  const auto soon = kStart + std::chrono::milliseconds(100);
  EXPECT_THAT(state.on_ends({exited(1, 7)}, soon).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.failure()->cause, exited(1, 7));
  EXPECT_EQ(state.exit_code(), 7);
  EXPECT_EQ(state.deadline(), kStart + kRules.after_failure);
}

TEST(JobStateTest, AWorkerThatWasLostAndDoesNotEndIsNamedBesideTheWitness) {
  JobState state(3, kRules);
  state.on_loss(2, 1);
  state.on_ends({exited(2, 4)}, kStart);
  const auto late = kStart + kRules.for_the_cause;
  EXPECT_THAT(state.on_time(late).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.failure()->cause, exited(2, 4));
  EXPECT_EQ(state.lost(), 1);
  EXPECT_EQ(state.exit_code(), 4);
  EXPECT_EQ(state.deadline(), kStart + kRules.after_failure);
  EXPECT_TRUE(state.on_time(kStart + kRules.after_failure).release);
}

TEST(JobStateTest, ALeaderThatHasExplainedItselfIsNotWaitedFor) {
  JobState state(2, kRules);
  state.on_loss(0, 1);
  EXPECT_THAT(state.on_ends({exited(0, 1)}, kStart).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.exit_code(), 1);
}

TEST(JobStateTest, ASignalWhileTheCauseIsAwaitedKeepsTheFailure) {
  JobState state(2, kRules);
  state.on_loss(0, 1);
  state.on_ends({exited(0, 7)}, kStart);
  EXPECT_THAT(state.on_signal(SIGTERM, kStart).forward, ElementsAre(SIGTERM));
  EXPECT_EQ(state.exit_code(), 7);
  EXPECT_TRUE(state.on_signal(SIGINT, kStart).release);
}

TEST(JobStateTest, AJobThatAllWorkersStoppedIsNeitherASuccessNorAFailure) {
  JobState state(2, kRules);
  EXPECT_THAT(state.on_ends({exited(1, 75)}, kStart).forward, IsEmpty());
  EXPECT_EQ(state.deadline(), std::nullopt);
  EXPECT_TRUE(state.on_ends({exited(0, 75)}, kStart).release);
  EXPECT_EQ(state.exit_code(), 75);
  EXPECT_EQ(state.cause(), Cause::kNone);
}

TEST(JobStateTest, AFailureBesideAStoppedWorkerCounts) {
  JobState state(2, kRules);
  state.on_ends({exited(1, 75)}, kStart);
  state.on_ends({killed(0, SIGSEGV)}, kStart);
  EXPECT_EQ(state.exit_code(), 139);
}

TEST(JobStateTest, AStopByASignalOfOurOwnIsTheSignals) {
  JobState state(1, kRules);
  state.on_signal(SIGTERM, kStart);
  state.on_ends({exited(0, 75)}, kStart);
  EXPECT_EQ(state.exit_code(), 143);
}

TEST(JobStateTest, SignalIsForwardedAndGivesTheGracePeriod) {
  JobState state(2, kRules);
  EXPECT_THAT(state.on_signal(SIGTERM, kStart).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.deadline(), kStart + kRules.grace);
  state.on_ends({exited(0, 1)}, kStart);
  EXPECT_FALSE(state.failure());
  EXPECT_TRUE(state.on_ends({exited(1, 0)}, kStart).release);
  EXPECT_EQ(state.exit_code(), 143);
}

TEST(JobStateTest, SecondCtrlCKillsAtOnce) {
  JobState state(2, kRules);
  EXPECT_FALSE(state.on_signal(SIGINT, kStart).release);
  EXPECT_TRUE(state.on_signal(SIGINT, kStart).release);
  EXPECT_EQ(state.exit_code(), 130);
}

TEST(JobStateTest, CtrlCWhileAFailureEndsTheJobKillsAndKeepsTheFailure) {
  JobState state(2, kRules);
  state.on_ends({exited(1, 7)}, kStart);
  EXPECT_TRUE(state.on_signal(SIGINT, kStart).release);
  EXPECT_EQ(state.exit_code(), 7);
}

TEST(JobStateTest, UserSignalsAreForwardedAndEndNothing) {
  JobState state(2, kRules);
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
    EXPECT_THAT(state.on_signal(signal, kStart).forward, ElementsAre(signal));
  }
  EXPECT_EQ(state.deadline(), std::nullopt);
  EXPECT_EQ(state.cause(), Cause::kNone);
}

TEST(JobStateTest, ClosedOutputEndsTheWorkersAsABrokenPipe) {
  JobState state(2, kRules);
  EXPECT_THAT(state.on_output_closed(EPIPE, kStart).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.exit_code(), 141);
  EXPECT_TRUE(state.cut_short());
  EXPECT_THAT(state.on_output_closed(ENOSPC, kStart).forward, IsEmpty());
  EXPECT_EQ(state.exit_code(), 141);
}

TEST(JobStateTest, ATerminalThatGoesAwayIsAHangupWhateverIsNoticedFirst) {
  EndRules on_terminal = kRules;
  on_terminal.hangs_up = true;
  JobState output_first(2, on_terminal);
  EXPECT_THAT(output_first.on_output_closed(EIO, kStart).forward, ElementsAre(SIGHUP, SIGCONT));
  EXPECT_EQ(output_first.deadline(), kStart + kRules.grace);
  EXPECT_THAT(output_first.on_signal(SIGHUP, kStart).forward, IsEmpty()) << "they have it already";
  EXPECT_EQ(output_first.exit_code(), 129);
  JobState signal_first(2, on_terminal);
  signal_first.on_signal(SIGHUP, kStart);
  signal_first.on_output_closed(EIO, kStart);
  EXPECT_EQ(signal_first.exit_code(), 129);
}

// A disk may say EIO, too. And under nohup workers ignore a hangup.
TEST(JobStateTest, OutputThatCannotBeWrittenEndsTheWorkersAsAFailure) {
  JobState on_disk(2, kRules);
  EXPECT_THAT(on_disk.on_output_closed(EIO, kStart).forward, ElementsAre(SIGTERM, SIGCONT));
  JobState state(2, kRules);
  EXPECT_THAT(state.on_output_closed(ENOSPC, kStart).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.exit_code(), 1);
}

TEST(JobStateTest, OutputThatIsLostAfterTheWorkersEndedWellGivesTheExitCode) {
  for (const auto& [error, code] : {std::pair(EPIPE, 141), std::pair(ENOSPC, 1)}) {
    JobState state(1, kRules);
    state.on_ends({exited(0, 0)}, kStart);
    EXPECT_THAT(state.on_output_closed(error, kStart).forward, IsEmpty());
    EXPECT_EQ(state.exit_code(), code);
    EXPECT_EQ(state.cause(), Cause::kOutputClosed);
    EXPECT_EQ(state.deadline(), std::nullopt);
    EXPECT_FALSE(state.cut_short());
  }
}

TEST(JobStateTest, OutputThatIsLostAfterAFailureOrASignalChangesNothing) {
  JobState failed(1, kRules);
  failed.on_ends({exited(0, 7)}, kStart);
  failed.on_output_closed(ENOSPC, kStart);
  EXPECT_EQ(failed.exit_code(), 7);
  JobState told(1, kRules);
  told.on_signal(SIGTERM, kStart);
  told.on_output_closed(EPIPE, kStart);
  EXPECT_EQ(told.exit_code(), 143);
}

TEST(JobStateTest, LostKeeperIsAFailureUnlessTheJobWasOver) {
  JobState lost(2, kRules);
  EXPECT_TRUE(lost.on_keeper_lost().release);
  EXPECT_EQ(lost.exit_code(), 137);
  JobState over(1, kRules);
  over.on_ends({exited(0, 0)}, kStart);
  EXPECT_FALSE(over.on_keeper_lost().release);
  EXPECT_EQ(over.exit_code(), 0);
}

TEST(JobStateTest, NothingIsForwardedAfterRelease) {
  JobState state(1, kRules);
  state.on_ends({exited(0, 0)}, kStart);
  EXPECT_THAT(state.on_signal(SIGUSR1, kStart).forward, IsEmpty());
  EXPECT_THAT(state.on_signal(SIGTERM, kStart).forward, IsEmpty());
  EXPECT_EQ(state.exit_code(), 0);
}

TEST(HostLostTest, EndsTheOthersAndIsTheCause) {
  JobState state(4, kRules);
  EXPECT_THAT(state.on_host_lost({2, 3}, kStart).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.cause(), Cause::kHostLost);
  EXPECT_EQ(state.exit_code(), 1);
  EXPECT_EQ(state.live(), 2);
  EXPECT_TRUE(state.on_ends({killed(0, SIGTERM), killed(1, SIGTERM)}, kStart).release);
  EXPECT_EQ(state.exit_code(), 1);
}

TEST(HostLostTest, ExplainsAFailureThatIsStillBeingJudged) {
  JobState state(3, kRules);
  state.on_loss(1, 2);
  EXPECT_THAT(state.on_ends({exited(1, 3)}, kStart).forward, IsEmpty());
  EXPECT_THAT(state.on_host_lost({2}, kStart).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.cause(), Cause::kHostLost);
  EXPECT_EQ(state.exit_code(), 1);
}

TEST(HostLostTest, IsNoCauseAfterAnother) {
  JobState state(3, kRules);
  state.on_signal(SIGINT, kStart);
  EXPECT_THAT(state.on_host_lost({2}, kStart).forward, IsEmpty());
  EXPECT_EQ(state.exit_code(), 130);
  EXPECT_EQ(state.live(), 2);
}

TEST(HostLostTest, WorkersThatHadEndedAreNotCountedTwice) {
  JobState state(3, kRules);
  state.on_ends({exited(2, 0)}, kStart);
  state.on_host_lost({1, 2}, kStart);
  EXPECT_EQ(state.live(), 1);
}

EndRules elastic_rules(int min_workers, int max_restarts) {
  EndRules rules = kRules;
  rules.elastic = {min_workers, max_restarts};
  return rules;
}

TEST(ElasticTest, AKilledWorkerIsReplacedAndTheJobGoesOn) {
  JobState state(3, elastic_rules(1, 10));
  state.on_formed({0, 1, 2});
  const auto orders = state.on_ends({killed(1, SIGKILL)}, kStart);
  EXPECT_THAT(orders.start, ElementsAre(1));
  EXPECT_THAT(orders.forward, IsEmpty());
  ASSERT_EQ(orders.left.size(), 1U);
  EXPECT_EQ(describe(orders.left[0], 10, 30),
            "rank 1 was killed by SIGKILL; 2 workers go on, and a replacement starts");
  EXPECT_EQ(state.cause(), Cause::kNone);
  EXPECT_EQ(state.live(), 3);
  state.on_formed({0, 2, 1});
  state.on_ends({exited(0, 0), exited(1, 0)}, kStart);
  EXPECT_TRUE(state.on_ends({exited(2, 0)}, kStart).release);
  EXPECT_EQ(state.exit_code(), 0);
}

TEST(ElasticTest, AReplacementThatDiesSoonWaitsForItsTurn) {
  JobState state(2, elastic_rules(1, 10));
  state.on_started(1, kStart);
  EXPECT_THAT(state.on_ends({killed(1, SIGSEGV)}, kStart).start, ElementsAre(1));
  state.on_started(1, kStart);
  const auto orders = state.on_ends({killed(1, SIGSEGV)}, kStart);
  EXPECT_THAT(orders.start, IsEmpty());
  EXPECT_THAT(describe(orders.left.at(0), 10, 30),
              HasSubstr("1 worker goes on, and a replacement starts in 1 s"));
  EXPECT_EQ(state.live(), 1);
  EXPECT_EQ(state.deadline(), kStart + std::chrono::seconds(1));
  EXPECT_THAT(state.on_time(kStart).start, IsEmpty());
  EXPECT_THAT(state.on_time(*state.deadline()).start, ElementsAre(1));
  EXPECT_EQ(state.deadline(), std::nullopt);
  EXPECT_EQ(state.live(), 2);
  EXPECT_EQ(state.left(), 2);
  EXPECT_EQ(state.replaced(), 2);
}

TEST(ElasticTest, WithoutARestartTheOthersGoOnAsLongAsThereAreEnough) {
  JobState state(3, elastic_rules(2, 0));
  const auto orders = state.on_ends({killed(2, SIGKILL)}, kStart);
  EXPECT_EQ(describe(orders.left.at(0), 0, 30),
            "rank 2 was killed by SIGKILL; 2 workers go on without it: no restart is left "
            "(--max-restarts 0)");
  EXPECT_THAT(state.on_ends({killed(1, SIGABRT)}, kStart).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.failure()->cause, killed(1, SIGABRT));
  EXPECT_EQ(state.exit_code(), 128 + SIGABRT);
}

TEST(ElasticTest, AllWorkersMayDieAtOnce) {
  JobState state(2, elastic_rules(1, 10));
  state.on_formed({0, 1});
  const auto orders = state.on_ends({killed(0, SIGKILL), killed(1, SIGKILL)}, kStart);
  EXPECT_THAT(orders.start, ElementsAre(0, 1));
  EXPECT_FALSE(orders.release);
  EXPECT_EQ(describe(orders.left.at(0), 10, 30),
            "rank 0 was killed by SIGKILL; a replacement starts");
  EXPECT_EQ(state.live(), 2);
}

TEST(ElasticTest, AWorkerThatExitsWithACodeEndsTheJob) {
  JobState state(2, elastic_rules(1, 10));
  EXPECT_THAT(state.on_ends({exited(1, 3)}, kStart).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.exit_code(), 3);
  EXPECT_THAT(state.on_ends({killed(0, SIGTERM)}, kStart).start, IsEmpty());
}

TEST(ElasticTest, WhoCannotGoOnWithoutAWorkerThatLeftLeavesToo) {
  JobState state(2, elastic_rules(1, 10));
  state.on_formed({0, 1});
  EXPECT_THAT(state.on_ends({killed(1, SIGKILL)}, kStart).start, ElementsAre(1));
  state.on_loss(0, 1);
  const auto orders = state.on_ends({exited(0, 3)}, kStart);
  EXPECT_THAT(orders.forward, IsEmpty());
  EXPECT_THAT(orders.start, ElementsAre(0));
  EXPECT_EQ(describe(orders.left.at(0), 10, 30),
            "rank 0 could not go on and exited with code 3; a replacement starts")
      << "the other one is starting, too";
}

TEST(ElasticTest, PeersThatEndBeforeTheWorkerThatTheyLostLeaveWithIt) {
  JobState state(2, elastic_rules(1, 10));
  state.on_formed({0, 1});
  state.on_loss(0, 1);
  EXPECT_THAT(state.on_ends({exited(0, 3)}, kStart).start, IsEmpty()) << "rank 1 may be dying";
  EXPECT_TRUE(state.deadline().has_value());
  const auto orders = state.on_ends({killed(1, SIGKILL)}, kStart);
  EXPECT_THAT(orders.forward, IsEmpty());
  EXPECT_THAT(orders.start, ElementsAre(0, 1));
}

TEST(ElasticTest, PeersThatLostAWorkerThatLivesOnHaveFailed) {
  JobState state(2, elastic_rules(1, 10));
  state.on_formed({0, 1});
  state.on_loss(0, 1);
  state.on_ends({exited(0, 3)}, kStart);
  EXPECT_THAT(state.on_time(*state.deadline()).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.exit_code(), 3);
}

TEST(ElasticTest, WithoutARestartTheWorkerThatLeftIsTheCause) {
  JobState state(2, elastic_rules(2, 1));
  state.on_formed({0, 1});
  EXPECT_THAT(state.on_ends({killed(1, SIGKILL)}, kStart).start, ElementsAre(1));
  state.on_loss(0, 1);
  EXPECT_THAT(state.on_ends({exited(0, 3)}, kStart).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.failure()->cause, killed(1, SIGKILL));
  EXPECT_EQ(state.exit_code(), 137);
}

TEST(ElasticTest, AReplacementThatTrainsAnswersForItself) {
  JobState state(2, elastic_rules(1, 10));
  state.on_formed({0, 1});
  state.on_ends({killed(1, SIGKILL)}, kStart);
  state.on_formed({0, 1});
  state.on_loss(0, 1);
  EXPECT_THAT(state.on_ends({exited(0, 3)}, kStart).forward, IsEmpty()) << "rank 1 lives";
  EXPECT_EQ(state.lost(), 1);
}

TEST(ElasticTest, OfWorkersThatEndTogetherACrashIsBlamedAsEver) {
  JobState state(2, elastic_rules(1, 10));
  state.on_ends({exited(0, 1), killed(1, SIGSEGV)}, kStart);
  EXPECT_EQ(state.failure()->cause, killed(1, SIGSEGV));
  EXPECT_EQ(state.left(), 0);
}

TEST(ElasticTest, TheEndOfTheLastGenerationEndsNewcomersQuietly) {
  JobState state(3, elastic_rules(1, 10));
  state.on_formed({0, 1, 2});
  state.on_ends({killed(2, SIGKILL)}, kStart);
  EXPECT_FALSE(state.on_ends({exited(0, 0)}, kStart).release);
  EXPECT_TRUE(state.on_ends({exited(1, 0)}, kStart).release);
  EXPECT_EQ(state.live(), 1) << "the replacement, which never joined";
  EXPECT_EQ(state.cause(), Cause::kNone);
  EXPECT_EQ(state.exit_code(), 0);
  EXPECT_FALSE(state.cut_short());
  EXPECT_TRUE(state.on_ends({killed(2, SIGKILL)}, kStart).left.empty());
}

TEST(ElasticTest, RestartsThatWaitAreDroppedWhenTheGenerationHasEnded) {
  JobState state(2, elastic_rules(1, 10));
  state.on_formed({0, 1});
  for (int death = 0; death < 2; ++death) {
    state.on_started(1, kStart);
    state.on_ends({killed(1, SIGKILL)}, kStart);
  }
  EXPECT_TRUE(state.deadline());
  EXPECT_TRUE(state.on_ends({exited(0, 75)}, kStart).release);
  EXPECT_EQ(state.deadline(), std::nullopt);
  EXPECT_EQ(state.exit_code(), 75);
}

// It may have been writing the last checkpoint.
TEST(ElasticTest, ALastMemberThatIsKilledIsAFailure) {
  JobState state(2, elastic_rules(1, 10));
  state.on_formed({0, 1});
  state.on_ends({exited(1, 0)}, kStart);
  EXPECT_TRUE(state.on_ends({killed(0, SIGKILL)}, kStart).release);
  EXPECT_EQ(state.exit_code(), 137);
}

TEST(ElasticTest, WorkersThatNeverMeetAreRestartedOneByOne) {
  JobState state(2, elastic_rules(1, 10));
  state.on_ends({exited(0, 0)}, kStart);
  EXPECT_THAT(state.on_ends({killed(1, SIGKILL)}, kStart).start, ElementsAre(1));
  EXPECT_TRUE(state.on_ends({exited(1, 0)}, kStart).release);
  EXPECT_EQ(state.exit_code(), 0);
}

TEST(ElasticTest, ASignalWhileARestartWaitsEndsTheJobAtOnce) {
  JobState state(1, elastic_rules(1, 10));
  for (int death = 0; death < 2; ++death) {
    state.on_started(0, kStart);
    state.on_ends({killed(0, SIGSEGV)}, kStart);
  }
  EXPECT_EQ(state.live(), 0);
  EXPECT_TRUE(state.on_signal(SIGINT, kStart).release);
  EXPECT_EQ(state.exit_code(), 130);
  EXPECT_EQ(state.deadline(), std::nullopt);
}

TEST(ElasticTest, KillsThatFollowASignalAreNoDepartures) {
  JobState state(2, elastic_rules(1, 10));
  state.on_signal(SIGTERM, kStart);
  EXPECT_THAT(state.on_ends({killed(0, SIGTERM)}, kStart).start, IsEmpty());
  EXPECT_TRUE(state.on_ends({killed(1, SIGTERM)}, kStart).release);
  EXPECT_EQ(state.exit_code(), 143);
}

TEST(ElasticTest, AWorkerThatOthersWaitForInVainIsKilledAndReplaced) {
  JobState state(2, elastic_rules(1, 1));
  state.on_formed({0, 1});
  EXPECT_THAT(state.on_expelled(1).kill, ElementsAre(1));
  const auto orders = state.on_ends({killed(1, SIGKILL)}, kStart);
  EXPECT_THAT(orders.start, ElementsAre(1));
  EXPECT_EQ(describe(orders.left.at(0), 1, 2.5),
            "rank 1 was ended: others had waited 2.5 s for it; 1 worker goes on, and a replacement "
            "starts");
  const auto again = state.on_ends({killed(1, SIGKILL)}, kStart);
  EXPECT_FALSE(again.left.at(0).expelled) << "not its replacement";
}

TEST(ElasticTest, FixedJobsKnowNothingOfIt) {
  JobState state(2, kRules);
  state.on_formed({0, 1});
  EXPECT_THAT(state.on_expelled(1).kill, IsEmpty());
  EXPECT_THAT(state.on_ends({killed(1, SIGKILL)}, kStart).forward, ElementsAre(SIGTERM, SIGCONT));
  EXPECT_EQ(state.exit_code(), 137);
}

}  // namespace
}  // namespace lockstep::control
