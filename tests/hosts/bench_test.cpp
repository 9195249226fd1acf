// `lockstep bench hosts` as a person runs it, and that nothing is left of it.
#include <gmock/gmock.h>
#include <linux/capability.h>
#include <sys/prctl.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/files.h"
#include "tests/launcher/command.h"
#include "tests/support/hosts.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class HostsBench : public WithHosts {
 protected:
  Command start(std::vector<std::string> words, const std::function<bool()>& enter = nullptr) {
    words.insert(words.begin(), {LOCKSTEP_BINARY, "bench", "hosts", "--rounds", "1"});
    return Command(words, {marker_}, enter);
  }
  std::string marker_ = make_marker();
};

TEST_F(HostsBench, EverySystemIsComparedWithSocketsAndWithTheRate) {
  Command command = start({"--rows", "allreduce,loopback", "--sizes", "4MiB", "--loopback-sizes",
                           "1KiB,100kB", "--peers", "sockets", "--iterations", "3", "--json"});
  ASSERT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  const auto results = nlohmann::json::parse(command.out());
  ASSERT_THAT(results, SizeIs(3 + 2 * 4));
  for (const auto& one : results) EXPECT_GT(one["times_of"]["sockets"], 0);
  for (int i = 0; i < 3; ++i) EXPECT_GT(results[i]["times_of"]["least"], 0.9) << results[i];
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

TEST_F(HostsBench, ThreeHostsOfOneWorkerAreExactToo) {
  Command command = start({"--rows", "allreduce", "--hosts", "3", "--workers", "1", "--sizes",
                           "4,1028,300000", "--peers", "sockets", "--iterations", "3", "--json"});
  ASSERT_TRUE(command.finish(seconds(60)));
  EXPECT_EQ(command.exit_code(), 0) << command.err();
  EXPECT_THAT(nlohmann::json::parse(command.out()), SizeIs(9));
}

std::set<std::string> namespaces_of(const std::vector<pid_t>& processes) {
  std::set<std::string> names;
  for (const pid_t process : processes)
    names.insert(base::link_target("/proc/" + std::to_string(process) + "/ns/net"));
  names.erase(base::link_target("/proc/self/ns/net"));
  names.erase("");
  return names;
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> all;
  for (const std::string& name : base::names_in("/proc")) {
    if (name.find_first_not_of("0123456789") == std::string::npos) all.push_back(std::stoi(name));
  }
  return all;
}

TEST_F(HostsBench, NothingIsLeftWhenItIsKilled) {
  Command command = start({"--rows", "allreduce", "--sizes", "64MiB", "--seconds", "100", "--peers",
                           "none", "--rate", "100mbit"});
  const auto deadline = seconds(30);
  while (namespaces_of(processes_with(marker_)).size() < 2 && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // polls /proc
  const auto made = namespaces_of(processes_with(marker_));
  EXPECT_THAT(made, SizeIs(2));
  command.signal(SIGKILL);
  ASSERT_TRUE(command.finish(seconds(30)));
  const auto left = [&] {
    std::set<std::string> names = namespaces_of(all_processes());
    std::erase_if(names, [&](const std::string& name) { return !made.contains(name); });
    return names;
  };
  const auto end = seconds(30);
  while (!left().empty() && !end.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_THAT(left(), IsEmpty());
  EXPECT_THAT(processes_with(marker_), IsEmpty());
}

TEST_F(HostsBench, WhatIsMissingIsSaidInOneLine) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root has something to lose";
  Command command = start({"--rows", "allreduce"},
                          [] { return ::prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0) == 0; });
  ASSERT_TRUE(command.finish(seconds(30)));
  EXPECT_NE(command.exit_code(), 0);
  EXPECT_THAT(lines_of(command.err()), SizeIs(1)) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("network namespaces are refused"));
}

}  // namespace
}  // namespace lockstep::testing
