#include "app/doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep::app {
namespace {

using testing::HasSubstr;

Facts good_host() {
  Facts facts;
  facts.engines = {{"thread", true, "threads"}, {"tcp", true, "TCP"}, {"nccl", true, "GPUs"}};
  facts.processor = "Some CPU";
  facts.cores = facts.hardware_threads = facts.allowed_threads = 16;
  facts.vector_extensions = {"avx2", "fma"};
  facts.governor = "performance";
  facts.huge_pages = "madvise";
  facts.memory_bytes = std::uint64_t{64} << 30;
  facts.available_bytes = std::uint64_t{60} << 30;
  facts.memfd = true;
  facts.open_files_hard = 1'000'000;
  facts.interfaces = {{"lo", true, true, 65536, {}}, {"eth0", true, false, 9000, 100'000}};
  facts.blas = "/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3";
  return facts;
}

// The finding of a topic that is not ok; an empty one when all are.
Finding complaint(const Facts& facts, const std::string& topic) {
  const auto findings = diagnose(facts);
  const auto found = std::find_if(findings.begin(), findings.end(), [&](const Finding& finding) {
    return finding.topic == topic && finding.level != Level::kOk;
  });
  return found == findings.end() ? Finding{} : *found;
}

TEST(DiagnoseTest, GoodHostHasNothingSlowOrMissing) {
  for (const auto& finding : diagnose(good_host())) {
    EXPECT_LE(finding.level, Level::kNote) << finding.text;
  }
  EXPECT_EQ(exit_code(diagnose(good_host())), 0);
}

TEST(DiagnoseTest, EveryComplaintHasANextStep) {
  Facts bad;
  bad.gpus = {"H200"};
  bad.infiniband = {"mlx5_0"};
  bad.locked_bytes = 65536;
  bad.governor = "powersave";
  bad.huge_pages = "never";
  bad.blas = "/usr/lib/blas/libblas.so.3";
  bad.cores = 2;
  bad.hardware_threads = 4;
  bad.cgroup_threads = 1.5;
  int complaints = 0;
  for (const auto& finding : diagnose(bad)) {
    if (finding.level < Level::kSlow) continue;
    ++complaints;
    EXPECT_FALSE(finding.next.empty()) << finding.text;
  }
  EXPECT_GE(complaints, 9);
}

TEST(DiagnoseTest, ReferenceBlasIsSlowAndNamesThePackage) {
  Facts facts = good_host();
  facts.blas = "/usr/lib/aarch64-linux-gnu/blas/libblas.so.3.11.0";
  EXPECT_EQ(complaint(facts, "blas").level, Level::kSlow);
  EXPECT_THAT(complaint(facts, "blas").next, HasSubstr("libopenblas0-pthread"));
}

TEST(DiagnoseTest, EngineThatIsNotBuiltSaysWhatToInstall) {
  Facts facts = good_host();
  facts.engines = {{"mpi", false, "install libopenmpi-dev"}, {"shm", true, "memory"}};
  EXPECT_EQ(complaint(facts, "engine").level, Level::kNote);
  EXPECT_EQ(complaint(facts, "engine").next, "install libopenmpi-dev");
}

TEST(DiagnoseTest, QuotaBelowTheProcessorsIsSlow) {
  Facts facts = good_host();
  facts.cgroup_threads = 2;
  EXPECT_EQ(complaint(facts, "cpu").level, Level::kSlow);
  facts.cgroup_threads = 32;
  EXPECT_EQ(complaint(facts, "cpu"), Finding{});
}

TEST(DiagnoseTest, LockedMemoryMattersOnlyWithInfiniBand) {
  Facts facts = good_host();
  facts.locked_bytes = 65536;
  EXPECT_EQ(complaint(facts, "limits"), Finding{});
  facts.infiniband = {"mlx5_0"};
  EXPECT_EQ(complaint(facts, "limits").level, Level::kSlow);
}

TEST(DiagnoseTest, GpuWithoutDeviceFilesOrEngineIsToldApart) {
  Facts facts = good_host();
  facts.gpus = {"H200"};
  EXPECT_EQ(complaint(facts, "gpu").level, Level::kMissing);
  facts.gpu_device_files = true;
  facts.cuda_missing = "the driver is too old";
  EXPECT_EQ(complaint(facts, "gpu").level, Level::kMissing);
  EXPECT_EQ(complaint(facts, "gpu").text, "the driver is too old");
  facts.cuda_gpus = 1;
  EXPECT_EQ(complaint(facts, "gpu"), Finding{});
  EXPECT_THAT(as_text(diagnose(facts)), HasSubstr("up to 1 worker with --device cuda"));
  facts.engines.pop_back();
  EXPECT_THAT(complaint(facts, "gpu").text, HasSubstr("nccl"));
}

TEST(DiagnoseTest, WithoutMemoryFilesLockstepIsUnusable) {
  Facts facts = good_host();
  facts.memfd = false;
  EXPECT_EQ(exit_code(diagnose(facts)), 1);
}

TEST(RenderTest, TextHasALineForEachFindingAndASummary) {
  const std::string text =
      as_text({{Level::kOk, "cpu", "fine", ""}, {Level::kSlow, "blas", "slow one", "do this"}});
  EXPECT_THAT(text, HasSubstr("ok       cpu"));
  EXPECT_THAT(text, HasSubstr("-> do this"));
  EXPECT_THAT(text, HasSubstr("1 slow, 0 missing"));
}

TEST(RenderTest, JsonIsReadBack) {
  const auto report =
      nlohmann::json::parse(as_json({{Level::kMissing, "gpu", "a \"b\" \xff", "c", true}}));
  EXPECT_EQ(report["usable"], false);
  EXPECT_EQ(report["findings"][0]["level"], "missing");
  EXPECT_EQ(report["findings"][0]["next"], "c");
}

TEST(SystemFilesTest, PiecesOfProcAreRead) {
  EXPECT_EQ(value_of("a\t: 1\nflags : x y\n", "flags"), "x y");
  EXPECT_EQ(value_of("a: 1", "b"), "");
  EXPECT_EQ(count_list("0-3,8"), 5);
  EXPECT_EQ(count_list(""), 0);
  EXPECT_EQ(chosen("always [madvise] never"), "madvise");
  EXPECT_EQ(chosen("broken"), "");
}

TEST(SystemFilesTest, CgroupPathsOfBothVersions) {
  const char* text = "4:memory:/box\n3:cpu,cpuacct:/turn\n0::/new\n";
  EXPECT_EQ(cgroup_path(text, "memory"), "/box");
  EXPECT_EQ(cgroup_path(text, "cpu"), "/turn");
  EXPECT_EQ(cgroup_path(text, "cpuacct"), "/turn");
  EXPECT_EQ(cgroup_path(text, ""), "/new");
  EXPECT_EQ(cgroup_path(text, "pids"), "");
}

TEST(GatherFactsTest, ThisHostHasAProcessorAndMemory) {
  const Facts facts = gather_facts();
  EXPECT_GE(facts.hardware_threads, 1);
  EXPECT_GE(facts.cores, 1);
  EXPECT_GT(facts.memory_bytes, 0U);
  EXPECT_FALSE(facts.engines.empty());
}

}  // namespace
}  // namespace lockstep::app
