// `lockstep train` with a small job, in a folder of its own.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/launcher/command.h"

namespace lockstep::testing {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Faults that kill all 3 workers at one point of a step.
inline std::string all_at(int step, const std::string& where) {
  std::string faults;
  for (int worker = 0; worker < 3; ++worker) {
    if (worker > 0) faults += ",";
    faults += "kill@" + std::to_string(step) + ":" + std::to_string(worker) + ":" + where;
  }
  return faults;
}

class Train : public ::testing::Test {
 protected:
  Train() {
    std::string pattern = (fs::temp_directory_path() / "lockstep train XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Train() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // A small job: some 10 ms a step.
  Command start(std::vector<std::string> options) const {
    std::vector<std::string> arguments = {LOCKSTEP_BINARY,  "train",     "--model",          "cnn",
                                          "--data",         "synthetic", "--workers",        "2",
                                          "--global-batch", "8",         "--loader-threads", "1",
                                          "--checkpoint",   "none"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return Command(arguments, {marker_});
  }

  Command finished(std::vector<std::string> options) const {
    Command command = start(std::move(options));
    EXPECT_TRUE(command.finish(seconds(100)));
    return command;
  }

  nlohmann::json report_of(std::vector<std::string> options) const {
    options.insert(options.end(), {"--quiet", "--report", path("report.json")});
    Command command = finished(options);
    EXPECT_EQ(command.exit_code(), 0) << command.err();
    std::ifstream file(path("report.json"));
    return nlohmann::json::parse(file);
  }

  // One line on standard error, the exit code, and nobody left.
  void expect_refusal(const Command& command, const std::string& piece, int code) const {
    EXPECT_EQ(command.exit_code(), code) << command.out() << command.err();
    EXPECT_THAT(lines_of(command.err()), SizeIs(1)) << command.err();
    EXPECT_THAT(command.err(), HasSubstr(piece));
    EXPECT_THAT(processes_with(marker_), IsEmpty());
  }

  // The checkpoints in a directory of this test, the newest first.
  std::vector<std::string> checkpoints(const std::string& directory = "run") const {
    std::vector<std::string> paths;
    if (!fs::exists(path(directory))) return paths;
    for (const auto& entry : fs::directory_iterator(path(directory))) {
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
    }
    std::sort(paths.rbegin(), paths.rend());
    return paths;
  }

  // The process of a worker; 0 if there is none.
  pid_t worker(int rank) const {
    const std::string wanted = '\0' + ("RANK=" + std::to_string(rank)) + '\0';
    for (const pid_t pid : processes_with(marker_)) {
      std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
      const std::string environment(std::istreambuf_iterator<char>(file), {});
      if (environment.find(wanted) != std::string::npos) return pid;
    }
    return 0;
  }

  fs::path folder_;
  std::string marker_ = make_marker();
};

}  // namespace lockstep::testing
