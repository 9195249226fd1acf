// Jobs know which data they began with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/optim.h>
#include <lockstep/trainer.h>

#include <fstream>
#include <string>
#include <vector>

#include "formats/checkpoint_file.h"
#include "formats/safetensors.h"
#include "tests/torch/folder.h"
#include "tests/torch/nets.h"
#include "torch/step/checkpoint.h"
#include "torch/step/data_record.h"

namespace lockstep::testing::data_record {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kContext = 8;

struct Training {
  explicit Training(World& world)
      : net(seeded<TwoLayers>(1, kContext)),
        model(data_parallel(net, world)),
        optimizer(std::make_shared<optim::SGD>(model, optim::SGDOptions{.lr = 0.1})) {}
  TrainingResult run(World& world, const DatasetPtr& dataset, TrainerOptions options) {
    TrainerParts parts{model, net.ptr(), optimizer, dataset};
    parts.loss = [net = net](const Batch& batch) mutable {
      return net->forward(batch.data.to(torch::kFloat32)).pow(2).mean();
    };
    options.global_batch = 4;
    options.shards = 2;
    return Trainer(world, parts, options).run();
  }
  TwoLayers net;
  DataParallel<TwoLayers> model;
  std::shared_ptr<optim::Optimizer> optimizer;
};

// A file of 222 windows, of which 200 are for training: of those 0, 3, 6 … 97, 101 … 199 are sampled.
class DataOfAJob : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream file(text_, std::ios::binary);
    for (int i = 0; i < 1780; ++i) file << "lockstep"[(i * i + i / 7) % 8];
  }
  // One character of a window into another of the text; a second time back.
  void change(std::int64_t window) {
    const std::string pairs = "lockstep";
    std::fstream file(text_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(window * kContext + 3);
    const std::size_t found = pairs.find(static_cast<char>(file.get()));
    file.seekp(window * kContext + 3);
    file.put(pairs[found ^ 1]);
  }
  // Goes on from the checkpoint; how it ended.
  std::string go_on(bool verify_data = false) {
    steps_ += 2;
    return outcomes_in_world(1,
                             [&](World& world) {
                               const auto data = datasets::load(text_, {.context = kContext});
                               Training(world).run(world, data.train, options(verify_data));
                             })[0]
        .text;
  }
  TrainerOptions options(bool verify_data) const {
    TrainerOptions options;
    options.steps = steps_;
    options.checkpoint_directory = folder_.path();
    options.existing_checkpoint = ExistingCheckpoint::kResume;
    options.verify_data = verify_data;
    return options;
  }
  formats::Metadata metadata() const {
    return formats::open_checkpoint(folder_.path(), formats::Checked::kAll).value().metadata();
  }
  static std::string key(const char* property) {
    return std::string(formats::kJobPrefix) + property;
  }

  Folder folder_;
  std::string text_ = folder_ / "book.txt";
  std::int64_t steps_ = 0;
};

TEST_F(DataOfAJob, ChangedAtASampledPlaceIsRefusedByAJobThatGoesOn) {
  EXPECT_EQ(go_on(), "");
  EXPECT_EQ(go_on(), "");
  change(199);
  EXPECT_THAT(go_on(), HasSubstr("is not the data that the job in " + folder_.path()));
  change(199);
  EXPECT_EQ(go_on(), "") << "the old data is back";
}

TEST_F(DataOfAJob, ChangedAnywhereIsRefusedIfAllOfItIsVerified) {
  EXPECT_EQ(go_on(true), "");
  change(100);
  EXPECT_EQ(go_on(), "") << "a place that is not sampled";
  EXPECT_TRUE(metadata().contains(key(steps::kDataWhole))) << "the job's first data, as before";
  EXPECT_THAT(go_on(true), HasSubstr("is not the data that the job in"));
  change(100);
  EXPECT_EQ(go_on(true), "");
}

TEST_F(DataOfAJob, IsUncheckedOnceWhereTheCheckpointKnowsLess) {
  EXPECT_EQ(go_on(), "");
  EXPECT_FALSE(metadata().contains(key(steps::kDataWhole)));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(go_on(true), "");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("knows 64 samples of its data"));
  EXPECT_TRUE(metadata().contains(key(steps::kDataWhole)));
}

TEST_F(DataOfAJob, IsUncheckedInAnOldCheckpoint) {
  EXPECT_EQ(go_on(), "");
  steps::Properties old;
  for (const auto& [name, value] : metadata()) {
    if (name.starts_with(formats::kJobPrefix) && !name.starts_with(key("data_")))
      old[name.substr(std::string(formats::kJobPrefix).size())] = value;
  }
  in_world(1, [&](World& world) {
    Training training(world);
    steps::CheckpointDirectory directory(
        world.comm(), {.directory = folder_.path(), .existing = ExistingCheckpoint::kReplace});
    steps::JobState state;
    state.add_model("", training.model.parameters(), training.model.buffers());
    state.add_optimizer("", *training.optimizer);
    directory.begin(state, steps_, old);
    directory.finish();
  });
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(go_on(), "");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("does not say which data"));
  EXPECT_TRUE(metadata().contains(key(steps::kDataSampled)));
}

TEST(DataOfWorkers, ThatDiffersIsAMismatchThatNamesTheRank) {
  const auto ends = [](std::int64_t changed_sample, bool verify_data) {
    return outcomes_in_world(2, [&](World& world) {
      auto data = samples(1, {200, kContext});
      if (world.rank() == 1) data[changed_sample] += 1;
      Training(world).run(world, tensor_dataset(data, torch::zeros(200)),
                          {.steps = 1, .verify_data = verify_data});
    });
  };
  for (const auto& outcomes : {ends(0, false), ends(100, true)}) {
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.kind, ErrorKind::kMismatch);
      EXPECT_THAT(outcome.ranks, ElementsAre(1));
      EXPECT_THAT(outcome.text, HasSubstr("workers read different training data"));
    }
  }
  EXPECT_EQ(ends(100, false)[0].text, "");
}

TEST(DataOfWorkers, ThatIsEmptyIsRefused) {
  const auto outcomes = outcomes_in_world(1, [](World& world) {
    Training(world).run(world, tensor_dataset(torch::zeros({0, kContext}), torch::zeros(0)),
                        {.steps = 1});
  });
  EXPECT_EQ(outcomes[0].kind, ErrorKind::kBadInput);
  EXPECT_THAT(outcomes[0].text, HasSubstr("empty"));
}

}  // namespace
}  // namespace lockstep::testing::data_record
