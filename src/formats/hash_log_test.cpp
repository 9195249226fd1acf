#include "formats/hash_log.h"

#include "formats/testing.h"

namespace lockstep::formats {
namespace {

using HashLogTest = FormatsTest;

HashLog example() {
  HashLog log;
  log.job = {{"seed", "7"}, {"data", "a \"file\"\n"}};
  log.tensors = {"fc.bias", "fc.weight"};
  log.steps = {{-1, {1, 2}}, {0, {0xffffffffffffffffULL, 4}}, {1, {5, 6}}};
  return log;
}

std::string log_text(const HashLog& log) {
  std::string text = hash_log_head(log);
  for (const auto& step : log.steps) text += hash_log_line(step);
  return text;
}

TEST_F(HashLogTest, WhatIsWrittenIsRead) {
  const HashLog log = load_hash_log(put("log", log_text(example())));
  EXPECT_EQ(log.job, example().job);
  EXPECT_EQ(log.tensors, example().tensors);
  ASSERT_EQ(log.steps.size(), 3U);
  ASSERT_NE(log.find(0), nullptr);
  EXPECT_EQ(log.find(0)->hashes, example().steps[1].hashes);
  EXPECT_EQ(log.find(1)->hashes, (std::vector<std::uint64_t>{5, 6}));
  EXPECT_EQ(log.find(2), nullptr);
}

TEST_F(HashLogTest, ALineWithoutItsEndDoesNotCount) {
  std::string text = log_text(example());
  text.resize(text.size() - 1);
  EXPECT_EQ(parse_hash_log(span_of(text), "f").steps.size(), 2U);
}

TEST_F(HashLogTest, OtherThingsAreRefusedByLine) {
  const std::string head = hash_log_head(example());
  const std::pair<std::string, std::string> cases[] = {
      {"", "is empty"},
      {"loss 0.3\n", "line 1 is no JSON object"},
      {"{}\n", "line 1 is not the head"},
      {"{\"lockstep_hashes\": 2}\n", "another version"},
      {"{\"lockstep_hashes\": 1}\n", "no job"},
      {"{\"lockstep_hashes\": 1, \"job\": {\"a\": 1}, \"tensors\": []}\n", "text belongs"},
      {"{\"lockstep_hashes\": 1, \"job\": {}, \"tensors\": [\"a\", \"a\"]}\n", "twice"},
      {head + "{\"step\": 0}\n", "line 2 has no step or no hashes"},
      {head + "{\"step\": -2, \"hashes\": []}\n", "line 2 has a step"},
      {head + "{\"step\": 18446744073709551615, \"hashes\": []}\n", "line 2 has a step"},
      {head + hash_log_line({4, {1, 2}}) + hash_log_line({4, {1, 2}}), "line 3 has a step"},
      {head + hash_log_line({4, {1}}), "another number of hashes"},
      {head + "{\"step\": 0, \"hashes\": [\"12\", \"34\"]}\n", "16 hexadecimal digits"},
      {head + "{\"step\": 0, \"hashes\": [3, 4]}\n", "text belongs"},
  };
  for (const auto& one : cases)
    expect_refusal([&] { parse_hash_log(span_of(one.first), "the-file"); }, "the-file", one.second);
}

}  // namespace
}  // namespace lockstep::formats
