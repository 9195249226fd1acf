// Jobs of `lockstep train` over several hosts give the weights of one worker.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/launcher/command.h"
#include "tests/support/joined.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using bench::Hosts;

class HostsTrain : public WithHosts {
 protected:
  HostsTrain() {
    std::string pattern = (fs::temp_directory_path() / "lockstep-hosts-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    std::ofstream text(folder_ / "text");
    for (int i = 0; i < 400; ++i) text << "a line of text, and its number is " << i << "\n";
  }
  ~HostsTrain() override { fs::remove_all(folder_); }

  std::vector<std::string> job_of(const std::string& model) const {
    std::vector<std::string> words = {
        "--model",      model,  "--shards",         "8", "--global-batch", "16", "--steps", "4",
        "--checkpoint", "none", "--loader-threads", "0", "--data"};
    if (model == "gpt") {
      words.push_back((folder_ / "text").string());
      words.insert(words.end(), {"--context", "16"});
    } else {
      words.emplace_back("synthetic:64");
    }
    return words;
  }

  // The hash that rank 0 reports.
  std::string weights_over(const Placement& placement, const std::string& model) const {
    const Hosts hosts({.count = placement.hosts()});
    const SecretFile secret;
    const std::string report = (folder_ / "report.json").string();
    fs::remove(report);
    std::vector<Command> workers;
    for (int rank = 0; rank < placement.size(); ++rank) {
      std::vector<std::string> words = {LOCKSTEP_TRAIN_BINARY, "--workers",
                                        std::to_string(placement.size()), "--report", report};
      const auto job = job_of(model);
      words.insert(words.end(), job.begin(), job.end());
      std::vector<std::string> variables = {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"};
      for (const auto& [key, value] :
           variables_of(placement, rank, Hosts::address(0) + ":29400", secret.path()))
        variables.push_back(key + "=" + value);
      workers.emplace_back(words, variables,
                           [&, rank] { return hosts.enter(placement.host_of(rank)); });
    }
    for (Command& worker : workers) {
      EXPECT_TRUE(worker.finish(seconds(120)));
      EXPECT_EQ(worker.exit_code(), 0) << worker.out() << worker.err();
    }
    std::ifstream file(report);
    return nlohmann::json::parse(file).at("weights_sha256");
  }

  void expect_weights_of_one_worker(const std::string& model,
                                    const std::vector<Placement>& placements) const {
    SCOPED_TRACE(model);
    const std::string expected = weights_over({{1}}, model);
    EXPECT_EQ(expected.size(), 64U);
    for (const Placement& placement : placements)
      EXPECT_EQ(weights_over(placement, model), expected) << placement.text();
  }

  fs::path folder_;
};

TEST_F(HostsTrain, TwoHostsGiveTheWeightsOfOneWorker) {
  expect_weights_of_one_worker("cnn", {{{1, 1}}});
}

TEST_F(HostsTrain, UpToFourHostsGiveTheWeightsOfOneWorkerForEveryModel) {
  LOCKSTEP_FULL_TEST_ONLY();
  for (const char* model : {"mlp", "cnn", "gpt"}) {
    expect_weights_of_one_worker(model, {{{1, 1}},
                                         {{1, 2}},
                                         {{2, 2}},
                                         {{1, 3}},
                                         {{2, 1, 2}},
                                         {{2, 2, 2}},
                                         {{4, 3}},
                                         {{4, 4}},
                                         {{2, 2, 2, 2}},
                                         {{1, 1, 1, 1}}});
  }
}

}  // namespace
}  // namespace lockstep::testing
