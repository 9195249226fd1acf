#include "app/train/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <stdlib.h>  // NOLINT: mkdtemp
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

namespace lockstep::app {
namespace {

namespace fs = std::filesystem;

class RunDirectoryTest : public ::testing::Test {
 protected:
  RunDirectoryTest() : before_(fs::current_path()) {
    std::string pattern = "/tmp/lockstep-runs-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    fs::current_path(folder_);
  }
  ~RunDirectoryTest() override {
    fs::current_path(before_);
    fs::remove_all(folder_);
  }

 private:
  fs::path before_;
  fs::path folder_;
};

TEST_F(RunDirectoryTest, IsNamedAfterModelAndTime) {
  std::tm time{};
  time.tm_year = 126;
  time.tm_mon = 10;
  time.tm_mday = 16;
  time.tm_hour = 5;
  EXPECT_EQ(run_name("cnn", time, 1), "lockstep-runs/cnn-20261116-050000");
  EXPECT_EQ(run_name("cnn", time, 3), "lockstep-runs/cnn-20261116-050000-3");
}

TEST_F(RunDirectoryTest, IsNewForEachRunAndGoneIfNothingWasKept) {
  {
    const RunDirectory one("cnn");
    const RunDirectory two("cnn");
    const RunDirectory three("cnn");
    EXPECT_NE(one.path(), two.path());
    EXPECT_NE(two.path(), three.path());
    EXPECT_TRUE(fs::is_directory(three.path()));
    std::ofstream(two.path() + "/checkpoint-000000001.safetensors") << "x";
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(kRunsDirectory), fs::directory_iterator()), 1);
  fs::remove_all(kRunsDirectory);
  {
    const RunDirectory one("cnn");
    std::ofstream(one.path() + "/checkpoint.lock") << "pid 1 on host none";  // of a killed job
  }
  EXPECT_FALSE(fs::exists(kRunsDirectory));
}

TEST_F(RunDirectoryTest, ThatCannotBeMadeSaysWhyAndWhatToDo) {
  std::ofstream(kRunsDirectory) << "a file";
  try {
    const RunDirectory one("cnn");
    FAIL() << "it was made";
  } catch (const BadInput& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("Not a directory"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--checkpoint DIR"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--checkpoint none"));
  }
}

}  // namespace
}  // namespace lockstep::app
