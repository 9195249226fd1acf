#include "control/launch/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace lockstep::control {
namespace {

using testing::HasSubstr;

class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    char path[] = "/tmp/lockstep-program-XXXXXX";
    folder_ = ::mkdtemp(path);
    make("runs", 0755);
    make("plain", 0644);
    std::filesystem::create_directory(folder_ / "folder");
  }
  ~ProgramTest() override { std::filesystem::remove_all(folder_); }

  void make(const char* name, mode_t mode) {
    std::ofstream(folder_ / name) << "#!/bin/sh\n";
    ::chmod((folder_ / name).c_str(), mode);
  }

  std::filesystem::path folder_;
};

TEST_F(ProgramTest, PathIsTakenAsItIs) {
  EXPECT_EQ(find_program((folder_ / "runs").string(), "").path, (folder_ / "runs").string());
}

TEST_F(ProgramTest, NameIsLookedForInTheFoldersInOrder) {
  EXPECT_EQ(find_program("runs", "/nonexistent:" + folder_.string() + ":/bin").path,
            (folder_ / "runs").string());
}

TEST_F(ProgramTest, AbsentProgramIs127AndIsNamed) {
  const Program by_path = find_program("./does-not-exist", "/bin");
  EXPECT_EQ(by_path.exit_code, 127);
  EXPECT_THAT(by_path.problem, HasSubstr("./does-not-exist"));
  const Program by_name = find_program("does-not-exist", "/bin");
  EXPECT_EQ(by_name.exit_code, 127);
  EXPECT_THAT(by_name.problem, HasSubstr("PATH"));
  EXPECT_EQ(find_program("runs", "").exit_code, 127);
}

TEST_F(ProgramTest, WhatCannotBeExecutedIs126WithTheCommandThatHelps) {
  EXPECT_EQ(find_program((folder_ / "plain").string(), "").exit_code, 126);
  EXPECT_THAT(find_program("plain", folder_.string()).problem, HasSubstr("chmod +x"));
  EXPECT_EQ(find_program((folder_ / "folder").string(), "").exit_code, 126);
}

TEST(ExplainExecFailureTest, SaysWhatIsWrongWithTheFile) {
  EXPECT_THAT(explain_exec_failure("./a", ENOEXEC), HasSubstr("#!"));
  EXPECT_THAT(explain_exec_failure("./a", ENOENT), HasSubstr("interpreter"));
  EXPECT_THAT(explain_exec_failure("./a", EAGAIN), HasSubstr("ulimit -u"));
}

}  // namespace
}  // namespace lockstep::control
