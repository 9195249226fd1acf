#include "comm/arena/memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lockstep::comm {
namespace {

// A host with 1000 KiB available, and a process in the cgroup /job/step.
class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() {
    char folder[] = "/tmp/lockstep-memory-XXXXXX";
    root_ = ::mkdtemp(folder);
    files_ = {root_ + "/proc", root_ + "/cgroup"};
    write("proc/meminfo", "MemTotal: 4000 kB\nMemAvailable: 1000 kB\n");
    write("proc/self/cgroup", "1:cpu:/elsewhere\n0::/job/step\n");
  }
  ~MemoryTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = root_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void cgroup(const std::string& path, const std::string& limit, const std::string& used,
              const std::string& stat = "") const {
    write("cgroup" + path + "/memory.max", limit + "\n");
    write("cgroup" + path + "/memory.current", used + "\n");
    if (!stat.empty()) write("cgroup" + path + "/memory.stat", stat);
  }
  std::size_t available() const { return available_memory(files_); }

 private:
  std::string root_;
  MemoryFiles files_;
};

TEST_F(MemoryTest, WithoutALimitItIsWhatTheHostHas) {
  EXPECT_EQ(available(), 1000U * 1024);
  cgroup("/job", "max", "70000");
  EXPECT_EQ(available(), 1000U * 1024);
}

TEST_F(MemoryTest, TheTightestCgroupOnTheWayUpDecides) {
  cgroup("/job/step", "90000", "50000");
  EXPECT_EQ(available(), 40'000U);
  cgroup("/job", "60000", "50000");
  EXPECT_EQ(available(), 10'000U);
  cgroup("/job", "60000", "61000");
  EXPECT_EQ(available(), 0U);
}

TEST_F(MemoryTest, TheCacheOfFilesIsGivenBackAndSharedMemoryIsNot) {
  cgroup("/job/step", "90000", "80000",
         "anon 10000\nfile 70000\nshmem 30000\ninactive_anon 30000\nactive_anon 10000\n"
         "inactive_file 25000\nactive_file 15000\n");
  EXPECT_EQ(available(), 50'000U);
}

TEST_F(MemoryTest, ACacheLargerThanWhatIsUsedFreesNoMoreThanThat) {
  cgroup("/job/step", "90000", "80000", "inactive_file 70000\nactive_file 9223372036854775807\n");
  EXPECT_EQ(available(), 90'000U);
  cgroup("/job/step", "90000", "80000", "inactive_file many\nactive_file -5\n");
  EXPECT_EQ(available(), 10'000U) << "what is no number counts for nothing";
}

}  // namespace
}  // namespace lockstep::comm
