#include "base/written_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/fd.h"
#include "base/take_pages.h"

namespace lockstep::base {
namespace {

// A memfd, mapped shared and privately.
struct Mapped {
  explicit Mapped(std::size_t pages) : bytes(pages * page_bytes()) {
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    shared = map(MAP_SHARED);
    own = map(MAP_PRIVATE);
  }
  ~Mapped() {
    ::munmap(shared, bytes);
    ::munmap(own, bytes);
  }
  std::byte* map(int kind) const {
    return static_cast<std::byte*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind, fd.get(), 0));
  }
  std::vector<ByteRange> written() const { return written_pages(own, {0, bytes}); }
  std::int64_t pages_there() const {
    std::vector<unsigned char> there(bytes / page_bytes());
    EXPECT_EQ(::mincore(shared, bytes, there.data()), 0);
    return std::count_if(there.begin(), there.end(), [](unsigned char page) { return page & 1; });
  }

  std::size_t bytes;
  Fd fd{::memfd_create("written_pages_test", MFD_CLOEXEC)};
  std::byte* shared = nullptr;
  std::byte* own = nullptr;
};

TEST(TakePages, NeedsNoWholePagesAndChangesNothing) {
  const std::size_t page = page_bytes();
  for (const int threads : {0, 1, 3, 7}) {
    const Mapped memory(5);
    memory.shared[2 * page + 7] = std::byte{3};
    take_pages({memory.shared + 10, 4 * page}, threads);
    EXPECT_EQ(memory.pages_there(), 5);
    for (std::size_t at = 10; at < 4 * page + 10; ++at)
      EXPECT_EQ(std::to_integer<int>(memory.shared[at]), at == 2 * page + 7 ? 3 : 0);
  }
  take_pages({}, 4);
}

TEST(WrittenPages, AreThoseThatThisProcessWroteTo) {
  const std::size_t page = page_bytes();
  const Mapped memory(3000);  // more than are looked at in one read
  EXPECT_TRUE(memory.written().empty());
  std::memset(memory.shared, 1, memory.bytes);
  for (std::size_t at = 0; at < memory.bytes; at += page) EXPECT_EQ(memory.own[at], std::byte{1});
  EXPECT_TRUE(memory.written().empty()) << "reading is no writing, and others' writes do not count";

  memory.own[0] = std::byte{7};
  memory.own[1023 * page] = std::byte{7};
  memory.own[1024 * page + 5] = std::byte{1};  // the value that it had
  memory.own[memory.bytes - 1] = std::byte{7};
  const std::vector<ByteRange> expected = {
      {0, page}, {1023 * page, 1025 * page}, {memory.bytes - page, memory.bytes}};
  EXPECT_EQ(memory.written(), expected);
  EXPECT_EQ(written_pages(memory.own, {page, 1024 * page}),
            (std::vector<ByteRange>{{1023 * page, 1024 * page}}));
}

TEST(WrittenPages, AWriteIsAPageFaultWhoeverWrites) {
  const Mapped memory(3);
  std::memset(memory.shared, 1, memory.bytes);
  for (std::size_t at = 0; at < memory.bytes; at += page_bytes())
    EXPECT_EQ(memory.own[at], std::byte{1});
  std::int64_t before = page_faults();
  memory.own[0] = std::byte{7};
  EXPECT_GT(page_faults(), before);
  before = page_faults();
  std::thread([&] { memory.own[page_bytes()] = std::byte{7}; }).join();
  EXPECT_GT(page_faults(), before) << "a thread that has ended";
  before = page_faults();
  const Fd zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::read(zeros.get(), memory.own + 2 * page_bytes(), 1), 1);
  EXPECT_GT(page_faults(), before) << "the kernel writes for this process";
}

TEST(WrittenPages, StandStillUntilTheyAreDropped) {
  const std::size_t page = page_bytes();
  const Mapped memory(4);
  memory.own[page] = std::byte{7};
  std::memset(memory.shared, 2, memory.bytes);
  EXPECT_EQ(memory.own[0], std::byte{2});
  EXPECT_EQ(memory.own[page], std::byte{7});
  EXPECT_EQ(memory.own[page + 1], std::byte{0}) << "the whole page";
  EXPECT_EQ(memory.shared[page], std::byte{2});
  for (const ByteRange& range : memory.written()) EXPECT_TRUE(drop_written(memory.own, range));
  EXPECT_EQ(memory.own[page], std::byte{2});
  EXPECT_TRUE(memory.written().empty());
}

}  // namespace
}  // namespace lockstep::base
