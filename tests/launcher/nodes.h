// Launchers on this machine that stand for as many hosts.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "control/launch/preparation.h"
#include "control/rendezvous/sockets.h"
#include "tests/launcher/command.h"

namespace lockstep::testing {

using Words = std::vector<std::string>;

class Nodes : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/lockstep-nodes-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    secret_ = folder_ + "/secret";
    write_secret(secret_, "0123456789abcdef0123456789abcdef");
    rendezvous_ = "127.0.0.1:" + std::to_string(control::free_port());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static void write_secret(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0600);
  }

  // One of `nodes` launchers, with the options that all have in common; later ones win.
  Command node(int rank, int workers, const Words& program, const Words& options = {},
               int nodes = 2) const {
    Words words = {LOCKSTEP_BINARY,
                   "run",
                   "--nodes",
                   std::to_string(nodes),
                   "--node-rank",
                   std::to_string(rank),
                   "-n",
                   std::to_string(workers)};
    const auto given = [&](const char* name) {
      return std::find(options.begin(), options.end(), name) != options.end();
    };
    if (!given("--rendezvous")) words.insert(words.end(), {"--rendezvous", rendezvous_});
    if (!given("--secret-file")) words.insert(words.end(), {"--secret-file", secret_});
    words.insert(words.end(), options.begin(), options.end());
    words.emplace_back("--");
    words.insert(words.end(), program.begin(), program.end());
    return Command(words, {marker_});
  }
  Command actor(int rank, int workers, const Words& role, const Words& options = {},
                int nodes = 2) const {
    Words program = {ACTOR_BINARY};
    program.insert(program.end(), role.begin(), role.end());
    return node(rank, workers, program, options, nodes);
  }

  // Workers that train until they are ended, at most `most` of them, on a node of a job or a host that joins it.
  static Words training(int most) { return {JOIN_ACTOR_BINARY, "train", std::to_string(most)}; }
  Command trains(int rank, int workers, int most, int nodes = 2) const {
    return node(rank, workers, training(most), {"--max-restarts", "10"}, nodes);
  }
  std::vector<pid_t> left(Deadline deadline) const {
    while (true) {
      auto left = processes_with(marker_);
      if (left.empty() || deadline.expired()) return left;
    }
  }

  std::string folder_;
  std::string secret_;
  std::string rendezvous_;
  std::string marker_ = make_marker();
};

}  // namespace lockstep::testing
