#include "control/rendezvous/secret.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lockstep::control {
namespace {

using testing::HasSubstr;

class SecretFile : public testing::Test {
 protected:
  SecretFile() {
    std::string pattern = std::filesystem::temp_directory_path() / "lockstep-secret-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~SecretFile() override { std::filesystem::remove_all(directory_); }

  std::string write(const std::string& content, mode_t mode) {
    const std::string path = directory_ + "/secret";
    std::ofstream(path) << content;
    ::chmod(path.c_str(), mode);
    return path;
  }
  std::string refusal(const std::string& path) {
    try {
      read_secret_file(path);
    } catch (const BadInput& error) {
      return error.what();
    }
    return "accepted";
  }

  std::string directory_;
};

TEST(SealedSecret, CanBeReadAgainAndAgainButNotChanged) {
  const std::string secret = make_secret();
  const base::Fd fd = seal_secret(secret);
  EXPECT_EQ(secret.size(), 32u);
  EXPECT_EQ(read_sealed_secret(fd.get()), secret);
  EXPECT_EQ(read_sealed_secret(fd.get()), secret);
  EXPECT_LT(::pwrite(fd.get(), "x", 1, 0), 0);
  EXPECT_NE(::ftruncate(fd.get(), 0), 0);
  EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SealedSecret, AnythingElseIsRefused) {
  EXPECT_THROW(read_sealed_secret(-1), BadInput);
  EXPECT_THROW(read_sealed_secret(0), BadInput);
  const base::Fd file(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  EXPECT_THROW(read_sealed_secret(file.get()), BadInput);
  EXPECT_THROW(read_sealed_secret(seal_secret("short").get()), BadInput);
}

TEST_F(SecretFile, APrivateFileIsReadWithoutItsLineEnd) {
  EXPECT_EQ(read_secret_file(write("0123456789abcdef0123\n", 0600)), "0123456789abcdef0123");
  EXPECT_EQ(read_secret_file(write("0123456789abcdef0123", 0400)), "0123456789abcdef0123");
}

TEST_F(SecretFile, OneThatOthersCanReadIsRefusedWithTheCommandToRun) {
  for (const mode_t mode : {0640, 0604, 0620, 0644}) {
    const std::string path = write("0123456789abcdef0123\n", mode);
    const std::string message = refusal(path);
    EXPECT_THAT(message, HasSubstr("chmod 600 " + path));
    EXPECT_THAT(message, testing::Not(HasSubstr("0123456789")));
    EXPECT_THAT(message, testing::Not(HasSubstr("\n")));
  }
}

TEST_F(SecretFile, AbsentEmptyShortOrStrangeFilesAreRefused) {
  EXPECT_THAT(refusal(directory_ + "/absent"), HasSubstr("openssl rand -hex 32"));
  EXPECT_THAT(refusal(write("", 0600)), HasSubstr("holds 0 bytes"));
  EXPECT_THAT(refusal(write("short\n\n\n\n\n\n\n\n\n\n\n\n\n\n", 0600)),
              HasSubstr("holds 5 bytes"));
  EXPECT_THAT(refusal(write(std::string(5000, 'x'), 0600)), HasSubstr("not 16 to 4096"));
  EXPECT_THAT(refusal(directory_), HasSubstr("not a regular file"));
  const std::string pipe = directory_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(refusal(pipe), HasSubstr("not a regular file"));
}

TEST_F(SecretFile, OneOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string path = write("0123456789abcdef0123\n", 0600);
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  EXPECT_THAT(refusal(path), HasSubstr("belongs to user 65534"));
}

}  // namespace
}  // namespace lockstep::control
