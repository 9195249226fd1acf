#include "base/atomic_file.h"
#include "tests/support/slow_build.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>

namespace lockstep::base {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes(fs::file_size(path), '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

class AtomicFileTest : public ::testing::TestWithParam<Temporary> {
 protected:
  AtomicFileTest() {
    std::string pattern = (fs::temp_directory_path() / "lockstep-atomic-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    target_ = directory_ / "model";
  }
  ~AtomicFileTest() override { fs::remove_all(directory_); }

  // With the one temporary of GetParam().
  static void put(const fs::path& path, std::string_view bytes) {
    AtomicFile file(path.string(), GetParam());
    file.write(bytes);
    file.commit();
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }

  fs::path directory_;
  fs::path target_;
};
INSTANTIATE_TEST_SUITE_P(All, AtomicFileTest,
                         ::testing::Values(Temporary::kUnnamed, Temporary::kNamed),
                         [](const auto& made) {
                           return made.param == Temporary::kNamed ? "Named" : "Unnamed";
                         });

// Runs `body` in a process of its own; its result is the exit status, or -signal.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 100;
    try {
      status = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Exit status 0: Unavailable, in the words of a full disk.
int expect_full_disk(const fs::path& target, Temporary temporary) {
  try {
    AtomicFile file(target.string(), temporary);
    file.write(std::string(std::size_t{1} << 20, 'n'));
    file.commit();
  } catch (const Unavailable& error) {
    std::printf("%s\n", error.what());
    const std::string text = error.what();
    return text.starts_with("no space left in ") &&
                   text.find("the earlier file is untouched") != std::string::npos
               ? 0
               : 2;
  }
  return 1;
}

TEST_P(AtomicFileTest, NothingIsThereBeforeCommitAndAllOfItAfter) {
  AtomicFile file(target_.string(), GetParam());
  file.write("one ");
  file.write("two");
  EXPECT_FALSE(fs::exists(target_));
  file.commit();
  EXPECT_EQ(contents(target_), "one two");
  EXPECT_EQ(files(), 1U);
}

TEST_P(AtomicFileTest, DroppedWithoutCommitLeavesTheEarlierFileAndNoTrace) {
  put(target_, "old");
  { AtomicFile(target_.string(), GetParam()).write("new"); }
  EXPECT_EQ(contents(target_), "old");
  EXPECT_EQ(files(), 1U);
}

TEST_P(AtomicFileTest, KeepsThePermissionsOfTheEarlierFile) {
  put(target_, "old");
  fs::permissions(target_, fs::perms::owner_read | fs::perms::owner_write);
  put(target_, "new");
  EXPECT_EQ(fs::status(target_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_P(AtomicFileTest, FollowsALinkAndKeepsIt) {
  fs::create_directory(directory_ / "disk");
  put(directory_ / "disk" / "real", "old");
  fs::create_symlink("disk/real", target_);
  put(target_, "new");
  EXPECT_TRUE(fs::is_symlink(target_));
  EXPECT_EQ(contents(directory_ / "disk" / "real"), "new");
}

TEST_P(AtomicFileTest, TwoWritersAtOnceDoNotDisturbEachOther) {
  AtomicFile first(target_.string(), GetParam());
  first.write("first");
  AtomicFile second(target_.string(), GetParam());
  second.write("second");
  second.commit();
  EXPECT_EQ(contents(target_), "second");
  first.commit();
  EXPECT_EQ(contents(target_), "first");
  EXPECT_EQ(files(), 1U);
}

TEST_P(AtomicFileTest, RemovesWhatDeadWritersLeftAndNothingElse) {
  const std::vector<std::string> stale = {".model.lockstep-tmp-1", ".model.lockstep-tmp-77-3"};
  const std::vector<std::string> others = {".model.lockstep-tmp-", ".model.lockstep-tmp-1x",
                                           ".model2.lockstep-tmp-1", "model.lockstep-tmp-1"};
  for (const auto& name : stale) std::ofstream(directory_ / name) << "half";
  for (const auto& name : others) std::ofstream(directory_ / name) << "mine";
  put(target_, "new");
  for (const auto& name : stale) EXPECT_FALSE(fs::exists(directory_ / name)) << name;
  for (const auto& name : others) EXPECT_TRUE(fs::exists(directory_ / name)) << name;
}

TEST_P(AtomicFileTest, WhatCannotBeWrittenIsBadInputThatNamesIt) {
  fs::create_symlink("nowhere", directory_ / "dangling");
  for (const fs::path& path :
       {directory_ / "absent" / "model", directory_, fs::path("/dev/null"), fs::path(""),
        directory_ / "dangling", directory_ / std::string(300, 'n')}) {
    try {
      put(path, "new");
      ADD_FAILURE() << path;
    } catch (const BadInput& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
    }
  }
}

[[noreturn]] void write_letters_until_killed(const fs::path& target, std::size_t bytes,
                                             Temporary temporary) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    for (char letter = 'b';; letter = letter == 'z' ? 'a' : static_cast<char>(letter + 1)) {
      AtomicFile file(target.string(), temporary);
      file.write(std::string(bytes, letter));
      file.commit();
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
  }
  ::_exit(1);
}

TEST_P(AtomicFileTest, WhatDeadWritersLeftOfManyTargetsCanBeRemovedAtOnce) {
  const std::vector<std::string> stale = {".model-1.lockstep-tmp-1", ".model.lockstep-tmp-2-1"};
  const std::vector<std::string> others = {".other.lockstep-tmp-1", ".model-1.lockstep-tmp-x",
                                           "model-1.lockstep-tmp-1"};
  for (const auto& name : stale) std::ofstream(directory_ / name) << "half";
  for (const auto& name : others) std::ofstream(directory_ / name) << "mine";
  AtomicFile living(target_.string(), GetParam());
  remove_unfinished(directory_.string(), "model");
  living.commit();
  EXPECT_TRUE(fs::exists(target_));
  for (const auto& name : stale) EXPECT_FALSE(fs::exists(directory_ / name)) << name;
  for (const auto& name : others) EXPECT_TRUE(fs::exists(directory_ / name)) << name;
}

TEST_P(AtomicFileTest, AKillAtAnyMomentLeavesTheOldOrTheNewFile) {
  constexpr std::size_t kBytes = 3 << 20;
  std::minstd_rand random(7);
  // Every second child should put a file in place before it dies, so that every moment of a write can
  // be met. How long that takes changes while other tests use the disk.
  std::chrono::microseconds latest = std::chrono::milliseconds(20);
  put(target_, std::string(kBytes, 'a'));
  int died_with_letters = 0;
  for (int round = 0; round < (testing::kSlowBuild ? 20 : 100) || died_with_letters == 0; ++round) {
    ASSERT_LT(latest, std::chrono::seconds(60)) << "no child has put a file in place";
    const auto written_at = fs::last_write_time(target_);
    const pid_t child = ::fork();
    if (child == 0) write_letters_until_killed(target_, kBytes, GetParam());
    ::usleep(static_cast<useconds_t>(random() % static_cast<std::uint64_t>(latest.count())));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself in round " << round;
    const std::string bytes = contents(target_);
    ASSERT_EQ(bytes.size(), kBytes) << "round " << round;
    ASSERT_TRUE(bytes == std::string(kBytes, bytes[0])) << "round " << round;
    latest = fs::last_write_time(target_) == written_at ? latest * 20 / 19 : latest * 19 / 20;
    if (bytes[0] != 'a') ++died_with_letters;
  }
  put(target_, "last");
  EXPECT_EQ(files(), 1U);
}

TEST_P(AtomicFileTest, AFileSizeLimitIsUnavailableAndTheEarlierFileStays) {
  put(target_, "old");
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64 << 10, 64 << 10};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 3;
    return expect_full_disk(target_, GetParam());
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(contents(target_), "old");
  EXPECT_EQ(files(), 1U);
}

TEST_P(AtomicFileTest, AFullDiskIsUnavailableAndTheEarlierFileStays) {
  constexpr int kCannotMount = 50;
  const int status = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", directory_.c_str(), "tmpfs", 0, "size=256k") != 0) {
      return kCannotMount;
    }
    put(target_, "old");
    const int verdict = expect_full_disk(target_, GetParam());
    return verdict != 0 ? verdict : contents(target_) == "old" && files() == 1 ? 0 : 4;
  });
  if (status == kCannotMount) GTEST_SKIP() << "needs root, to mount a small tmpfs";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep::base
