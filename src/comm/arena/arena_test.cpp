#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/arena.h>
#include <lockstep/errors.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/fd.h"

namespace lockstep {
namespace {

TEST(ArenaTest, IsZeroedRoundedUpToPagesAndSealed) {
  const Arena arena = Arena::create(100);
  EXPECT_EQ(arena.size() % static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), 0u);
  for (std::size_t i = 0; i < arena.size(); ++i) ASSERT_EQ(arena.data()[i], std::byte{0});
  EXPECT_NE(::ftruncate(arena.fd(), 1 << 20), 0) << "sealed against growing";
  EXPECT_NE(::ftruncate(arena.fd(), 0), 0) << "sealed against shrinking";
}

TEST(ArenaTest, AnotherProcessSeesWhatOneWrites) {
  const Arena arena = Arena::create(4096);
  const pid_t child = ::fork();
  if (child == 0) {
    const Arena mine = Arena::attach(arena.fd(), 4096);
    mine.data()[17] = std::byte{42};
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(arena.data()[17], std::byte{42});
}

TEST(ArenaTest, ADescriptorOfAnotherSizeOrWithoutSealsIsRefused) {
  const Arena arena = Arena::create(1 << 20);
  EXPECT_THROW(Arena::attach(arena.fd(), 1 << 21), Mismatch);
  const base::Fd plain(::memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(plain.get(), 4096), 0);
  EXPECT_THROW(Arena::attach(plain.get(), 4096), Mismatch);
  const base::Fd file(::open("/proc/self/status", O_RDONLY));
  EXPECT_THROW(Arena::attach(file.get(), 4096), Mismatch);
}

TEST(ArenaTest, MoreThanTheHostHasIsRefusedBeforeItIsTaken) {
  EXPECT_GT(available_memory_bytes(), 0u);
  try {
    Arena::create(std::size_t{1} << 50);
    FAIL() << "a petabyte was granted";
  } catch (const Unavailable& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("bytes are available"));
  }
}

TEST(ArenaTest, LeavesNoDescriptorBehind) {
  const auto open_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_descriptors();
  for (int i = 0; i < 10; ++i) {
    Arena arena = Arena::create(4096);
    Arena second = Arena::attach(arena.fd(), 4096);
    arena = std::move(second);
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace lockstep
