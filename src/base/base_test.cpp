#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <lockstep/deadline.h>
#include <lockstep/errors.h>
#include <unistd.h>
#include <cstring>

#include <cstdlib>
#include <fstream>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/diagnosis.h"
#include "base/environment.h"
#include "base/fd.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory_use.h"
#include "base/process.h"

namespace lockstep::base {
namespace {

using std::chrono::milliseconds;

TEST(Errors, RaiseThrowsTheClassOfItsKind) {
  EXPECT_THROW(raise(ErrorKind::kPeerLost, "x"), PeerLost);
  EXPECT_THROW(raise(ErrorKind::kTimeout, "x"), Timeout);
  EXPECT_THROW(raise(ErrorKind::kMismatch, "x"), Mismatch);
  EXPECT_THROW(raise(ErrorKind::kBadInput, "x"), BadInput);
  EXPECT_THROW(raise(ErrorKind::kUnavailable, "x"), Unavailable);
}

TEST(Errors, CarryTheRanksTheyAreAbout) {
  try {
    throw Mismatch("ranks 1 and 3 disagree", {1, 3});
  } catch (const Error& error) {
    EXPECT_EQ(error.ranks(), (std::vector<int>{1, 3}));
    EXPECT_STREQ(name(error.kind()), "Mismatch");
  }
}

TEST(Diagnosis, OnlyALackOfMemoryIsCalledOne) {
  EXPECT_EQ(diagnosis(std::bad_alloc()), "no memory left");
  EXPECT_EQ(diagnosis(std::bad_array_new_length()), "no memory left");
  EXPECT_EQ(diagnosis(PeerLost("rank 2 died", {2})), "rank 2 died");
  const std::system_error refused(EAGAIN, std::generic_category(), "cannot start a thread");
  EXPECT_EQ(diagnosis(refused), refused.what());
  EXPECT_EQ(diagnosis(std::out_of_range("at(3)")),
            "a bug in Lockstep, please report it with this line: at(3)");
}

TEST(DeadlineTest, FarSpansDoNotOverflow) {
  const auto far = Deadline::after(std::chrono::nanoseconds::max());
  EXPECT_FALSE(far.expired());
  EXPECT_GT(far.left_ms(), 1000);
}

TEST(DeadlineTest, PastMeansExpiredAndNothingLeft) {
  const auto past = Deadline::after(milliseconds(-5));
  EXPECT_TRUE(past.expired());
  EXPECT_EQ(past.left_ms(), 0);
}

TEST(Bytes, RoundTripIsLittleEndian) {
  ByteWriter writer;
  writer.put(std::uint32_t{0x01020304}).put(std::int16_t{-2}).put_text("hi");
  EXPECT_EQ(writer.bytes().substr(0, 4), std::string("\x04\x03\x02\x01"));
  ByteReader reader(writer.bytes());
  EXPECT_EQ(reader.get<std::uint32_t>(), 0x01020304u);
  EXPECT_EQ(reader.get<std::int16_t>(), -2);
  EXPECT_EQ(reader.get_text(16), "hi");
  EXPECT_TRUE(reader.done());
}

TEST(Bytes, ShortInputMakesTheReaderBadForGood) {
  ByteReader reader("ab");
  EXPECT_EQ(reader.get<std::uint64_t>(), 0u);
  EXPECT_EQ(reader.get<std::uint8_t>(), 0u);
  EXPECT_FALSE(reader.ok());
}

TEST(Bytes, TextLongerThanAllowedIsRefusedBeforeItIsRead) {
  ByteWriter writer;
  writer.put_text("too long");
  ByteReader reader(writer.bytes());
  EXPECT_EQ(reader.get_text(3), "");
  EXPECT_FALSE(reader.ok());
}

// FIPS 180-2, and RFC 4231 test case 2.
TEST(Hash, MatchesPublishedVectors) {
  EXPECT_EQ(to_hex(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Hash, PartsHashLikeTheWhole) {
  Sha256 parts;
  parts.update("a");
  parts.update("");
  parts.update("bc");
  EXPECT_EQ(parts.finish(), sha256("abc"));
}

TEST(Hash, RandomBytesDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(random_bytes(16));
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_TRUE(equal_secrets("same", "same"));
  EXPECT_FALSE(equal_secrets("same", "sane"));
}

TEST(Environment, NumberOutsideItsRangeNamesTheVariable) {
  ::setenv("LOCKSTEP_TEST_NUMBER", "12x", 1);
  try {
    environment_number("LOCKSTEP_TEST_NUMBER", 0, 100);
    FAIL() << "accepted 12x";
  } catch (const BadInput& error) {
    EXPECT_NE(std::string(error.what()).find("LOCKSTEP_TEST_NUMBER=12x"), std::string::npos);
  }
  ::setenv("LOCKSTEP_TEST_NUMBER", "101", 1);
  EXPECT_THROW(environment_number("LOCKSTEP_TEST_NUMBER", 0, 100), BadInput);
  ::setenv("LOCKSTEP_TEST_NUMBER", "100", 1);
  EXPECT_EQ(environment_number("LOCKSTEP_TEST_NUMBER", 0, 100), 100);
  ::setenv("LOCKSTEP_TEST_NUMBER", "", 1);
  EXPECT_EQ(environment_number("LOCKSTEP_TEST_NUMBER", 0, 100), std::nullopt);
}

// The level is read once in a process: each in a new one.
TEST(Log, ALevelThatIsNoneIsToldAndSilencesNothing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const auto& [level, told] : {std::pair{"verbose", true}, {"warn", false}, {"off", false}}) {
    EXPECT_EXIT(
        {
          ::setenv("LOCKSTEP_LOG", level, 1);
          const bool warns = log_enabled(LogLevel::kWarn);
          std::exit(warns == (std::string(level) != "off") ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), told ? "LOCKSTEP_LOG=verbose is none of" : "^$");
  }
}

TEST(FdTest, ReadExactlyEndsAtTheDeadlineAndAtTheEndOfTheWriter) {
  Pipe pipe = make_pipe();
  EXPECT_EQ(read_exactly(pipe.read.get(), 3, Deadline::after(milliseconds(20))), "");
  EXPECT_TRUE(write_all(pipe.write.get(), "abcd", Deadline::after(milliseconds(100))));
  EXPECT_EQ(read_exactly(pipe.read.get(), 3, Deadline::after(milliseconds(100))), "abc");
  pipe.write.reset();
  EXPECT_EQ(read_exactly(pipe.read.get(), 3, Deadline::after(milliseconds(100))), "");
}

TEST(FdTest, ReadFileRefusesWhatIsAbsentOrTooLarge) {
  EXPECT_THROW(read_file("/nonexistent/file", 10), BadInput);
  EXPECT_THROW(read_file("/proc/self/status", 10), BadInput);
}

TEST(MemoryUse, CountsTouchedPagesOfTheProcessAndOfOneMapping) {
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  const std::size_t before = proportional_set_bytes();
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_LT(proportional_set_bytes(memory), kBytes / 2);
  std::memset(memory, 1, kBytes);
  EXPECT_EQ(proportional_set_bytes(memory), kBytes);
  EXPECT_GE(proportional_set_bytes(), before + kBytes / 2);
  ::munmap(memory, kBytes);
}

TEST(Files, PathsAreTakenApartAndJoined) {
  EXPECT_EQ(parent_path("a/b/c"), "a/b");
  EXPECT_EQ(parent_path("a//b/"), "a");
  EXPECT_EQ(parent_path("c"), ".");
  EXPECT_EQ(parent_path("/c"), "/");
  EXPECT_EQ(parent_path("/"), "/");
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
}

TEST(Files, DirectoriesAreMadeListedAndToldFromFiles) {
  std::string folder = "/tmp/lockstep-files-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  EXPECT_TRUE(make_directories(folder + "/a/b/"));
  EXPECT_TRUE(make_directories(folder + "/a/b"));
  EXPECT_TRUE(is_directory(folder + "/a/b"));
  std::ofstream(folder + "/a/file") << "x";
  EXPECT_TRUE(exists(folder + "/a/file"));
  EXPECT_FALSE(is_directory(folder + "/a/file"));
  EXPECT_FALSE(make_directories(folder + "/a/file/b"));
  EXPECT_EQ(errno, ENOTDIR);
  EXPECT_FALSE(make_directories("/sys/lockstep/a"));  // where nobody may, root neither
  EXPECT_TRUE(errno == EACCES || errno == EPERM || errno == EROFS) << std::strerror(errno);
  EXPECT_EQ(names_in(folder + "/a"), (std::vector<std::string>{"b", "file"}));
  EXPECT_TRUE(names_in(folder + "/none").empty());
  EXPECT_FALSE(link_target("/proc/self/exe").empty());
  EXPECT_TRUE(link_target(folder).empty());
  for (const char* name : {"/a/file", "/a/b", "/a", ""}) ::remove((folder + name).c_str());
  EXPECT_FALSE(exists(folder));
}

TEST(Process, AChildOfForkKnowsThatItIsNotTheOriginalOne) {
  const OriginalProcess before;
  EXPECT_FALSE(before.left());
  const pid_t child = ::fork();
  if (child == 0) {
    const OriginalProcess own;
    const pid_t its_child = ::fork();
    if (its_child == 0) ::_exit(before.left() && own.left() ? 0 : 1);
    int status = 1;
    ::waitpid(its_child, &status, 0);
    ::_exit(status == 0 && before.left() && !own.left() ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(before.left());
}

TEST(Process, AnAncestorIsFoundByItsNameEvenIfThatHoldsBrackets) {
  EXPECT_EQ(ancestor_named("no such name"), 0);
  const pid_t above = ::fork();
  if (above == 0) {
    ::prctl(PR_SET_NAME, "a) (b) 1");
    const int own = ::getpid();
    const auto child_of = [](auto check) {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(check() ? 0 : 1);
      int status = 1;
      ::waitpid(child, &status, 0);
      return status == 0;
    };
    const bool found = child_of([&] {
      ::prctl(PR_SET_NAME, "between");
      return child_of([&] { return ancestor_named("a) (b) 1") == own; });
    });
    ::_exit(found ? 0 : 1);
  }
  int status = 1;
  ::waitpid(above, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep::base
