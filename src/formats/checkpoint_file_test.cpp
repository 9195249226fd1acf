#include "formats/checkpoint_file.h"

#include "formats/testing.h"

namespace lockstep::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckpointFileTest : public FormatsTest {
 protected:
  std::string save(std::int64_t step) const {
    const std::string file = checkpoint_path(directory_.string(), step);
    save_safetensors(file, {}, {{kStepKey, std::to_string(step)}});
    return file;
  }
  std::vector<std::string> names() const { return checkpoints_in(directory_.string()); }

  // The step of the checkpoint that is opened; −1: there is none. What is said is in said_.
  std::int64_t opened(Checked checked = Checked::kAll) {
    ::testing::internal::CaptureStderr();
    std::optional<SafetensorsFile> file;
    try {
      file = open_checkpoint(directory_.string(), checked);
    } catch (...) {
      said_ = ::testing::internal::GetCapturedStderr();
      throw;
    }
    said_ = ::testing::internal::GetCapturedStderr();
    return file ? number_in(*file, kStepKey) : -1;
  }

  std::string said_;
};

TEST(CheckpointNames, CarryTheStepAndSortByIt) {
  EXPECT_EQ(checkpoint_path("run", 120), "run/checkpoint-000000120.safetensors");
  EXPECT_EQ(step_in_name("checkpoint-000000120.safetensors"), 120);
  EXPECT_EQ(step_in_name("checkpoint-1099511627776.safetensors"), std::int64_t{1} << 40);
  for (const char* const other :
       {"checkpoint.safetensors", "checkpoint.previous.safetensors", "checkpoint-.safetensors",
        "checkpoint-x.safetensors", "checkpoint--1.safetensors", "checkpoint-1", "checkpoint.lock",
        ".checkpoint-000000001.safetensors.lockstep-tmp-1", "model-1.safetensors",
        "checkpoint-99999999999999999999.safetensors"})
    EXPECT_FALSE(step_in_name(other)) << other;
}

TEST_F(CheckpointFileTest, TheNewestComesFirstAndThoseOfEarlierVersionsLast) {
  EXPECT_FALSE(holds_checkpoint(directory_.string()));
  EXPECT_FALSE(holds_checkpoint(path("absent")));
  EXPECT_EQ(opened(), -1);
  for (const std::int64_t step :
       {std::int64_t{9}, std::int64_t{1'000'000'000'000}, std::int64_t{10}})
    save(step);
  put("checkpoint.safetensors", "x");
  put("checkpoint.previous.safetensors", "x");
  put("checkpoint.lock", "x");
  EXPECT_TRUE(holds_checkpoint(directory_.string()));
  EXPECT_THAT(names(),
              ElementsAre("checkpoint-1000000000000.safetensors",
                          "checkpoint-000000010.safetensors", "checkpoint-000000009.safetensors",
                          "checkpoint.safetensors", "checkpoint.previous.safetensors"));
}

TEST_F(CheckpointFileTest, ADamagedOneIsSkippedAndSaidOnce) {
  for (const std::int64_t step : {1, 2, 3, 4}) save(step);
  put("checkpoint-000000004.safetensors", "damaged");
  put("checkpoint-000000003.safetensors", "");
  EXPECT_EQ(opened(Checked::kHeader), 2);
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_EQ(opened(), 2);
  EXPECT_EQ(std::count(said_.begin(), said_.end(), '\n'), 1) << said_;
  EXPECT_THAT(said_, HasSubstr("checkpoint-000000004.safetensors: has 7 bytes, too few"));
  EXPECT_THAT(said_, HasSubstr("goes on from an earlier one, " + path("checkpoint-000000002")));
}

TEST_F(CheckpointFileTest, IfAllAreDamagedTheNewestIsNamed) {
  put("checkpoint-000000004.safetensors", "damaged");
  expect_refusal([&] { opened(); }, "checkpoint-000000004", "too few for a safetensors file");
  put("checkpoint.safetensors", "damaged");
  expect_refusal([&] { opened(); }, "checkpoint-000000004", "The earlier ones there cannot be");
}

TEST_F(CheckpointFileTest, TheLastOnesAreKeptAndLaterOnesGo) {
  for (const std::int64_t step : {1, 2, 3, 4, 8}) save(step);
  put("checkpoint.safetensors", "x");
  put("other.safetensors", "x");
  remove_other_checkpoints(directory_.string(), 4, 3);
  EXPECT_THAT(names(),
              ElementsAre("checkpoint-000000004.safetensors", "checkpoint-000000003.safetensors",
                          "checkpoint-000000002.safetensors"));
  remove_other_checkpoints(directory_.string(), 4, 1);
  EXPECT_THAT(names(), ElementsAre("checkpoint-000000004.safetensors"));
  EXPECT_TRUE(base::exists(path("other.safetensors")));
}

}  // namespace
}  // namespace lockstep::formats
