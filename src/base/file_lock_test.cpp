#include "base/file_lock.h"

#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "base/files.h"

namespace lockstep::base {
namespace {

Deadline in_ms(int count) {
  return Deadline::after(std::chrono::milliseconds(count));
}

class FileLockTest : public ::testing::Test {
 protected:
  FileLockTest() { folder_ = ::mkdtemp(pattern_); }
  ~FileLockTest() override {
    ::unlink(path().c_str());
    ::rmdir(folder_.c_str());
  }
  std::string path() const { return folder_ + "/lock"; }

 private:
  char pattern_[24] = "/tmp/file-lock-XXXXXX";
  std::string folder_;
};

TEST_F(FileLockTest, IsHeldByOneAndNamesIt) {
  {
    const auto held = FileLock::take(path(), in_ms(0));
    ASSERT_TRUE(held);
    EXPECT_FALSE(FileLock::take(path(), in_ms(30)));
    EXPECT_TRUE(FileLock::holder_of(path()).starts_with("pid " + std::to_string(::getpid())));
  }
  EXPECT_FALSE(exists(path()));
  EXPECT_EQ(FileLock::holder_of(path()), "");
  EXPECT_TRUE(FileLock::take(path(), in_ms(0)));
}

TEST_F(FileLockTest, IsFreeAtOnceWhenItsHolderIsKilled) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const auto held = FileLock::take(path(), in_ms(0));
    if (::write(ready[1], held ? "y" : "n", 1) == 1) ::pause();
    ::_exit(1);
  }
  char said = 0;
  ASSERT_EQ(::read(ready[0], &said, 1), 1);
  EXPECT_EQ(said, 'y');
  EXPECT_FALSE(FileLock::take(path(), in_ms(0)));
  EXPECT_TRUE(FileLock::holder_of(path()).starts_with("pid " + std::to_string(holder)));
  ::kill(holder, SIGKILL);
  EXPECT_TRUE(FileLock::take(path(), in_ms(10'000)));
  ::waitpid(holder, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

// Holders remove the file that others have opened already.
TEST_F(FileLockTest, NeverHasTwoHoldersThoughEachRemovesItsFile) {
  std::atomic<int> inside = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        const auto held = FileLock::take(path(), in_ms(60'000));
        ASSERT_TRUE(held);
        const int before = inside.fetch_add(1);
        EXPECT_EQ(before, 0);
        std::this_thread::yield();
        inside.fetch_sub(1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(FileLockTest, SaysWhyItCannotBeMade) {
  try {
    FileLock::take("/proc/lockstep/lock", in_ms(0));
    FAIL() << "it was made";
  } catch (const BadInput& error) {
    EXPECT_NE(std::string(error.what()).find("/proc/lockstep/lock"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::base
