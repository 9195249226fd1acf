// `lockstep jobs`, `resize` and `stop`, and jobs whose number of workers changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "control/rendezvous/sockets.h"
#include "tests/launcher/command.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr uid_t kNobody = 65534;

class JobsTest : public ::testing::Test {
 protected:
  // `lockstep run [options] -- /bin/sh -c SCRIPT`
  Command run_script(std::vector<std::string> options, const std::string& script) const {
    std::vector<std::string> arguments = {LOCKSTEP_BINARY, "run"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"--", "/bin/sh", "-c", script});
    return Command(std::move(arguments), {marker_});
  }

  // Workers that train until they are ended, at most `most` of them. begun() waits for the first generation.
  Command run_training(std::vector<std::string> options, int most) const {
    return run_script(std::move(options),
                      "exec " + quoted(JOIN_ACTOR_BINARY) + " train " + std::to_string(most));
  }

  // Another command of the user, to its end.
  static Command ask(std::vector<std::string> words, const std::function<bool()>& enter = nullptr) {
    words.insert(words.begin(), LOCKSTEP_BINARY);
    Command command(std::move(words), {}, enter);
    EXPECT_TRUE(command.finish(seconds(30)));
    return command;
  }

  // Reads the id of a job that was started with MIN:MAX.
  static std::string id_of(Command& job) {
    EXPECT_TRUE(job.wait_for("changes that", 1, seconds(30))) << job.err();
    const auto at = job.err().find("lockstep: job ");
    return at == std::string::npos ? "" : job.err().substr(at + 14, 4);
  }

  // Until a batch is done, the launcher refuses because it does not know of one.
  static Command resize(const std::string& id, int workers) {
    const Deadline deadline = seconds(30);
    while (true) {
      Command command = ask({"resize", id, std::to_string(workers)});
      if (command.err().find("a first batch") == std::string::npos || deadline.expired())
        return command;
    }
  }

  static base::Fd connect_to(const std::string& id) {
    std::string problem;
    return control::try_connect({control::Address::Kind::kUnix,
                                 "lockstep-job-" + std::to_string(::geteuid()) + "-" + id, 0},
                                seconds(10), problem);
  }

  static std::ptrdiff_t open_files_of(pid_t pid) {
    const std::filesystem::directory_iterator files("/proc/" + std::to_string(pid) + "/fd");
    return std::distance(begin(files), end(files));
  }

  static long cpu_ticks_of(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text(std::istreambuf_iterator<char>(file), {});
    std::istringstream words(text.substr(text.rfind(')') + 2));
    std::vector<std::string> fields(std::istream_iterator<std::string>(words), {});
    return std::stol(fields.at(11)) + std::stol(fields.at(12));  // user and system
  }

  void stop(Command& job, const std::string& id) const {
    EXPECT_EQ(ask({"stop", id}).exit_code(), 0);
    ASSERT_TRUE(job.finish(seconds(30)));
    EXPECT_EQ(job.exit_code(), 128 + SIGTERM) << job.err();
    EXPECT_THAT(processes_with(marker_), IsEmpty());
  }

  void expect_refusal(const Command& command, const std::string& piece, int code) const {
    EXPECT_EQ(command.exit_code(), code) << command.out() << command.err();
    EXPECT_THAT(lines_of(command.err()), SizeIs(1)) << command.err();
    EXPECT_THAT(command.err(), HasSubstr(piece));
  }

  std::string marker_ = make_marker();
};

TEST_F(JobsTest, AJobIsGivenMoreWorkersAndFewer) {
  Command job = run_training({"-n", "1:4"}, 4);
  const std::string id = id_of(job);
  EXPECT_EQ(resize(id, 4).exit_code(), 0);
  ASSERT_TRUE(job.wait_for(" of 4 in", 4, seconds(30))) << job.out() << job.err();
  EXPECT_EQ(resize(id, 1).exit_code(), 0);
  ASSERT_TRUE(job.wait_for(" 0 of 1 in", 1, seconds(30))) << job.out() << job.err();
  EXPECT_THAT(job.err(), HasSubstr("rank 3 has left: the job is to have fewer workers"));
  EXPECT_EQ(resize(id, 3).exit_code(), 0);
  ASSERT_TRUE(job.wait_for(" of 3 in", 3, seconds(30))) << job.out() << job.err();
  const std::string listed = ask({"jobs"}).out();
  EXPECT_THAT(listed, AllOf(HasSubstr("JOB"), HasSubstr(id + " ")));
  EXPECT_THAT(listed.substr(listed.find(id)),
              AllOf(HasSubstr(" 3 "), HasSubstr(" 1:4 "), HasSubstr("/bin/sh -c")));
  stop(job, id);
  EXPECT_THAT(job.err(), Not(HasSubstr("workers left"))) << "nobody was lost";
}

TEST_F(JobsTest, AKilledWorkerIsReplacedAlsoAfterAResize) {
  Command job = run_training({"-n", "1:3"}, 3);
  const std::string id = id_of(job);
  EXPECT_EQ(resize(id, 1).exit_code(), 0);  // with how many it begins depends on the cores
  ASSERT_TRUE(job.wait_for(" 0 of 1 in", 1, seconds(30))) << job.err();
  EXPECT_EQ(resize(id, 3).exit_code(), 0);
  ASSERT_TRUE(job.wait_for(" of 3 in", 3, seconds(30))) << job.err();
  ASSERT_TRUE(job.wait_for("3 workers train from here on", 1, seconds(30))) << job.err();
  const pid_t keeper = children_of(job.pid()).at(0);
  ::kill(children_of(keeper).at(2), SIGKILL);
  ASSERT_TRUE(job.wait_for("3 workers train from here on", 2, seconds(30))) << job.err();
  stop(job, id);
}

TEST_F(JobsTest, SizesThatCannotBeAreRefusedAndTheJobIsUnharmed) {
  Command job = run_training({"-n", "1:4"}, 3);
  const std::string id = id_of(job);
  EXPECT_EQ(resize(id, 1).exit_code(), 0);
  expect_refusal(resize(id, 5), "job " + id + ": it can have 1 to 4 workers", 1);
  expect_refusal(resize(id, 4), "job " + id + ": it has 3 shards: that many workers at most", 1);
  expect_refusal(ask({"resize", id, "0"}), "is no number of workers", 2);
  expect_refusal(ask({"resize", id + "0", "2"}), "no job " + id + "0 of yours", 2);
  // As a script gives it whose variable is not set.
  for (const char* none : {"", " ", "*"}) {
    expect_refusal(ask({"resize", none, "2"}), "is no id of a job", 2);
    expect_refusal(ask({"stop", none}), "is no id of a job", 2);
  }
  EXPECT_EQ(resize(id, 2).exit_code(), 0) << "it goes on";
  ASSERT_TRUE(job.wait_for(" of 2 in", 2, seconds(30))) << job.err();
  stop(job, id);
}

TEST_F(JobsTest, AFixedNumberOfWorkersAndProgramsThatNeverMeetAreRefused) {
  Command scripts = run_script({"-n", "1:2"}, "exec " + quoted(ACTOR_BINARY) + " wait");
  const std::string id = id_of(scripts);
  expect_refusal(ask({"resize", id, "2"}), "have not ended a first batch", 1);
  stop(scripts, id);
  Command fixed = run_actor(1, {"wait", marker_}, {}, {marker_});
  ASSERT_TRUE(fixed.wait_for("ready", 1, seconds(30)));
  std::string its_id;  // by its program: other jobs of this user may run
  for (const std::string& line : lines_of(ask({"jobs"}).out())) {
    if (line.find(marker_) != std::string::npos) its_id = line.substr(0, 4);
  }
  ASSERT_NE(its_id, "");
  Command refused = ask({"resize", its_id, "2"});
  EXPECT_EQ(refused.exit_code(), 1);
  EXPECT_THAT(refused.err(), HasSubstr("its number of workers is fixed"));
}

TEST_F(JobsTest, LimitsThatCannotBeAreRefusedBeforeAnythingStarts) {
  for (const auto& [words, piece] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"-n", "8:2"}, "the least comes first; did you mean 2:8?"},
           {{"-n", "0:2"}, "ask for 1 to 4096"},
           {{"-n", "2:5000"}, "ask for 1 to 4096"},
           {{"-n", "2:"}, "give a whole number, or MIN:MAX"},
           {{"-n", ":2"}, "give a whole number, or MIN:MAX"},
           {{"-n", "2:3", "--min-workers", "1"}, "leave out --min-workers"},
           {{"-n", "2:3", "--hosts", "a,b"}, "on one host"}}) {
    std::vector<std::string> all = {"run"};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"--", "/bin/true"});
    expect_refusal(ask(all), piece, 2);
  }
}

TEST_F(JobsTest, AnotherUserSeesNothingAndChangesNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Command job = run_training({"-n", "1:2"}, 2);
  const std::string id = id_of(job);
  const auto as_nobody = [] { return ::setuid(kNobody) == 0; };
  EXPECT_THAT(ask({"jobs"}, as_nobody).out(), Not(HasSubstr(id)));
  expect_refusal(ask({"stop", id}, as_nobody), "job " + id + " belongs to user 0", 2);
  expect_refusal(ask({"resize", id, "2"}, as_nobody), "belongs to user 0", 2);
  EXPECT_EQ(resize(id, 2).exit_code(), 0) << "it goes on";
  ASSERT_TRUE(job.wait_for(" of 2 in", 2, seconds(30))) << job.err();
  stop(job, id);
}

TEST_F(JobsTest, BytesThatAreNoRequestAreDropped) {
  Command job = run_training({"-n", "1:2"}, 2);
  const std::string id = id_of(job);
  std::vector<base::Fd> silent;  // half a request each; they are held for some seconds
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, 'x'), std::string(64, '\0'),
        std::string("lockstep 1 resize 99999999999\n"), std::string("lockstep 1 "),
        std::string()}) {
    silent.push_back(connect_to(id));
    ASSERT_TRUE(silent.back());
    base::write_all(silent.back().get(), bytes, seconds(10));
  }
  EXPECT_EQ(resize(id, 2).exit_code(), 0);
  ASSERT_TRUE(job.wait_for(" of 2 in", 2, seconds(30))) << job.err();
  stop(job, id);
}

// A bug of the user's own monitor, or malice: connections that say nothing and are never closed.
TEST_F(JobsTest, IdleConnectionsCostAJobLittleAndNobodyWaitsForThem) {
  constexpr int kIdle = 500;
  Command job = run_training({"-n", "1:2"}, 2);
  const std::string id = id_of(job);
  EXPECT_EQ(resize(id, 1).exit_code(), 0);
  const auto before = open_files_of(job.pid());
  std::vector<base::Fd> idle;
  for (int i = 0; i < kIdle; ++i) idle.push_back(connect_to(id));
  EXPECT_EQ(std::count_if(idle.begin(), idle.end(), [](const base::Fd& fd) { return bool(fd); }),
            kIdle);
  for (int round = 0; round < 3; ++round) {
    const Deadline soon = seconds(4);  // less than a silent connection may stay
    EXPECT_EQ(resize(id, 1).exit_code(), 0);
    EXPECT_FALSE(soon.expired());
    // This asks all jobs of the user. One of another test may be stopped.
    EXPECT_THAT(ask({"jobs"}).out(), AllOf(HasSubstr(id), HasSubstr(" 1:2 ")));
    for (int i = 0; i < 20; ++i) idle.push_back(connect_to(id));
  }
  EXPECT_LE(open_files_of(job.pid()), before + 64);
  EXPECT_EQ(resize(id, 2).exit_code(), 0) << "they are still open";
  ASSERT_TRUE(job.wait_for(" of 2 in", 2, seconds(30))) << job.err();
  stop(job, id);
}

TEST_F(JobsTest, ALauncherWithoutDescriptorsDoesNotSpinAndAnswersAgainLater) {
  Command job = run_training({"-n", "1:2"}, 2);
  const std::string id = id_of(job);
  EXPECT_EQ(resize(id, 1).exit_code(), 0);
  rlimit limit{};
  ASSERT_EQ(::prlimit(job.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 3;  // new descriptors get no number; those that are open stay
  ASSERT_EQ(::prlimit(job.pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  const auto used = cpu_ticks_of(job.pid());
  const base::Fd waits = connect_to(id);
  EXPECT_TRUE(waits);
  expect_refusal(ask({"stop", id}), "job " + id + " does not answer", 1);  // after 5 s
  EXPECT_LT(cpu_ticks_of(job.pid()) - used, ::sysconf(_SC_CLK_TCK)) << "a second of 5";
  ASSERT_EQ(::prlimit(job.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  EXPECT_EQ(resize(id, 2).exit_code(), 0) << "what was refused is not done later";
  ASSERT_TRUE(job.wait_for(" of 2 in", 2, seconds(30))) << job.err();
  stop(job, id);
}

TEST_F(JobsTest, AKilledLauncherIsNotListedAndAStoppedOneIsSaidToBe) {
  Command job = run_training({"-n", "1:2"}, 2);
  const std::string id = id_of(job);
  job.signal(SIGSTOP);
  expect_refusal(ask({"stop", id}), "job " + id + " does not answer", 1);
  job.signal(SIGCONT);
  EXPECT_EQ(resize(id, 2).exit_code(), 0) << "nobody waits for the stop any more: it goes on";
  ASSERT_TRUE(job.wait_for(" of 2 in", 2, seconds(30))) << job.err();
  job.signal(SIGKILL);
  ASSERT_TRUE(job.finish(seconds(30)));
  expect_refusal(ask({"stop", id}), "no job " + id + " of yours runs on this host", 2);
}

TEST_F(JobsTest, ANewcomerThatDoesNotFitIsRefusedByNameAndTheJobGoesOn) {
  Command job = run_script({"-n", "2:4", "--env", "LOCKSTEP_ENGINE=shm"},
                           "[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 1 ] && export "
                           "LOCKSTEP_ENGINE=tcp; exec " +
                               quoted(JOIN_ACTOR_BINARY) + " train 4");
  const std::string id = id_of(job);
  EXPECT_EQ(resize(id, 3).exit_code(), 0);
  ASSERT_TRUE(job.wait_for(" of 3 in", 3, seconds(30))) << job.err();
  for (const pid_t pid : processes_with(marker_)) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
    const std::string environment(std::istreambuf_iterator<char>(file), {});
    if (environment.find(std::string("\0RANK=1\0", 8)) != std::string::npos) ::kill(pid, SIGKILL);
  }
  ASSERT_TRUE(job.wait_for(
      "rank 1 could not join and exited with code 1; 2 workers go on without it", 1, seconds(30)))
      << job.out() << job.err();
  EXPECT_THAT(job.err(), HasSubstr("joins with engine tcp, the job has shm"));
  EXPECT_EQ(resize(id, 3).exit_code(), 0) << "its place is filled when somebody asks for it";
  ASSERT_TRUE(job.wait_for("3 workers train from here on", 2, seconds(30))) << job.err();
  stop(job, id);
}

TEST_F(JobsTest, AReplacementThatCannotBeStartedIsTriedAgain) {
  char pattern[] = "/tmp/lockstep-jobs-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(pattern);
  const auto program = folder / "train";
  std::filesystem::copy_file(JOIN_ACTOR_BINARY, program);
  Command job(
      {LOCKSTEP_BINARY, "run", "-n", "2", "--max-restarts", "10", "--", program, "train", "2"},
      {marker_});
  ASSERT_TRUE(job.wait_for(" of 2 in", 2, seconds(30))) << job.err();
  std::filesystem::rename(program, folder / "away");
  const pid_t keeper = children_of(job.pid()).at(0);
  ::kill(children_of(keeper).at(1), SIGKILL);
  ASSERT_TRUE(
      job.wait_for("could not be started: No such file or directory; 1 worker goes on, and "
                   "a replacement starts in 1 s",
                   1, seconds(30)))
      << job.err();
  std::filesystem::rename(folder / "away", program);
  ASSERT_TRUE(job.wait_for("2 workers train from here on", 1, seconds(30))) << job.err();
  std::filesystem::remove_all(folder);
}

TEST_F(JobsTest, AWorkerThatCrashesBehindTheEndOfTheJobHasDoneItsPart) {
  Command job({LOCKSTEP_BINARY, "run", "-n", "3", "--max-restarts", "10", "--", JOIN_ACTOR_BINARY,
               "crash", "1"},
              {marker_});
  ASSERT_TRUE(job.finish(seconds(30)));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(),
              HasSubstr("rank 1 was killed by SIGSEGV; it had reached the end of the job"));
  Command leader({LOCKSTEP_BINARY, "run", "-n", "3", "--max-restarts", "10", "--",
                  JOIN_ACTOR_BINARY, "crash", "0"},
                 {marker_});
  ASSERT_TRUE(leader.finish(seconds(30)));
  EXPECT_EQ(leader.exit_code(), 128 + SIGSEGV) << "it may have had something to write";
}

}  // namespace
}  // namespace lockstep::testing
