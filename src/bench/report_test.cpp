#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/allreduce.h"
#include "bench/plot.h"
#include "bench/step.h"
#include "bench/step_cuda.h"

namespace lockstep::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

AllreduceReport small_report() {
  AllreduceReport report{
      2, {{"lockstep-shm", "direct", {}}, {"limit", "loop", {}}, {"limit-dirty", "loop", {}}}};
  report.results[0].add({R"({"bytes":1024,"block":2,"us":[4,4,4]})"});
  report.results[0].add({R"({"bytes":1024,"block":2,"us":[4]})", R"({"bytes":2048,"us":[8]})"});
  report.results[1].add({R"({"bytes":1024,"block":2,"us":[1]})", R"({"bytes":2048,"us":[2]})"});
  report.results[2].add({R"({"bytes":1024,"block":2,"us":[3]})"});
  return report;
}

TEST(BenchReportTest, TheMemoryOfAWorkerCountsOnceHoweverManyLinesItPrints) {
  StepResult result;
  result.add({R"({"rank":0,"pss_mb":10,"state_mb":4,"step_ms":[1,2]})",
              R"({"rank":1,"pss_mb":12,"state_mb":5,"step_ms":[3]})", R"({"rank":0,"step_ms":[4]})",
              R"({"rank":1,"step_ms":[5]})"});
  EXPECT_THAT(result.step_ms, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(result.pss_mb, ElementsAre(22));
  EXPECT_THAT(result.state_mb, ElementsAre(9));
  EXPECT_THROW(result.add({R"({"rank":0,"step_ms":[4]})"}), std::exception);
}

TEST(BenchReportTest, JsonIsOneArrayOfObjects) {
  const auto json = nlohmann::json::parse(as_json(small_report()));
  ASSERT_THAT(json, SizeIs(5));
  EXPECT_EQ(json[0]["system"], "lockstep-shm");
  EXPECT_EQ(json[0]["workers"], 2);
  EXPECT_EQ(json[0]["bytes"], 1024);
  EXPECT_EQ(json[0]["p50_us"], 4);
  EXPECT_EQ(json[0]["samples"], 4);
  EXPECT_DOUBLE_EQ(json[0]["algbw_GBps"], 0.256);
  EXPECT_DOUBLE_EQ(json[0]["of_limit"], 0.25);
  EXPECT_DOUBLE_EQ(json[0]["of_dirty"], 0.75);
  EXPECT_EQ(json[3]["bytes"], 2048);
  EXPECT_EQ(json[3]["of_dirty"], nullptr) << "not measured at this size";
}

TEST(BenchReportTest, AStepsJsonNamesTheBaseOfItsEfficiency) {
  StepReport report{.workers = 2,
                    .shards = 2,
                    .threads = 1,
                    .model = "mlp",
                    .batch = 32,
                    .optimizer = "sgd",
                    .results = {{"plain", "", {}, {}, {}}, {"lockstep-shm", "", {}, {}, {}}}};
  report.results[0].add({R"({"rank":0,"pss_mb":10,"state_mb":4,"step_ms":[50,50]})",
                         R"({"rank":1,"pss_mb":12,"state_mb":4,"step_ms":[50,50]})"});
  report.results[1].add({R"({"rank":0,"pss_mb":9,"state_mb":2,"step_ms":[40]})"});
  const auto json = nlohmann::json::parse(as_json({report}));
  ASSERT_THAT(json, SizeIs(2));
  EXPECT_EQ(json[0]["system"], "plain");
  EXPECT_EQ(json[0]["model"], "mlp");
  EXPECT_EQ(json[0]["batch"], 32);
  EXPECT_EQ(json[0]["step_ms_p50"], 50);
  EXPECT_EQ(json[0]["pss_mb"], 22);
  EXPECT_EQ(json[0]["state_mb"], 8);
  EXPECT_DOUBLE_EQ(json[0]["samples_per_second"], 1280);
  EXPECT_EQ(json[1]["efficiency_base"], "plain");
  EXPECT_DOUBLE_EQ(json[1]["efficiency"], 1.25);
}

// A run of one system with one worker, in which every step took the same time.
StepResult steps_of(const std::string& system, double ms) {
  StepResult result;
  result.system = system;
  result.add({fmt::format(R"({{"rank":0,"pss_mb":1,"state_mb":1,"step_ms":[{}]}})", ms)});
  return result;
}

TEST(BenchReportTest, WaitingForTheSlowestIsToldFromTheCostOfSynchronising) {
  StepReport report{
      .workers = 2, .shards = 2, .model = "mlp", .batch = 32, .optimizer = "sgd", .results = {}};
  report.results = {steps_of("plain", 50), steps_of("lockstep-shm", 60)};
  EXPECT_THAT(as_table({report}), Not(HasSubstr("waiting")));
  EXPECT_THAT(as_table({report}), Not(HasSubstr("of plain-barrier")));
  EXPECT_TRUE(nlohmann::json::parse(as_json({report}))[1]["of_plain_barrier"].is_null());
  report.results.push_back(steps_of("lockstep-shm-fused", 49));
  report.results.push_back(steps_of("lockstep-shm-step", 52));
  report.results.push_back(steps_of(kPlainBarrier, 54));
  const std::string table = as_table({report});
  EXPECT_THAT(table, HasSubstr("of plain  of plain-barrier"));
  EXPECT_THAT(
      table,
      HasSubstr("waiting for the slowest worker: 4.00 ms a step (plain-barrier takes 1.080 times "
                "the time of plain); its part of what each takes more than plain: "
                "lockstep-shm 40 % of 10.00 ms; lockstep-shm-fused no slower; "
                "lockstep-shm-step 100 % of 2.00 ms\n"));
  const auto json = nlohmann::json::parse(as_json({report}));
  EXPECT_DOUBLE_EQ(json[1]["efficiency"], 50.0 / 60);
  EXPECT_DOUBLE_EQ(json[1]["of_plain_barrier"], 0.9);
  report.results.back() = steps_of(kPlainBarrier, 49);
  EXPECT_THAT(as_table({report}),
              HasSubstr("none can be seen (plain-barrier takes 0.980 times the time of plain)\n"));
  report.workers = report.shards = 1;  // there is nobody to wait for
  EXPECT_THAT(as_table({report}), Not(HasSubstr("waiting")));
}

TEST(BenchReportTest, ManyShardsAreMeasuredAgainstAPlainAccumulation) {
  StepReport report{.workers = 2,
                    .shards = 8,
                    .threads = 1,
                    .model = "mlp",
                    .batch = 32,
                    .optimizer = "sgd",
                    .results = {{kPlainAccumulate, "", {}, {}, {}},
                                {kPlainAccumulateFlat, "", {}, {}, {}},
                                {"lockstep-shm-fused", "", {}, {}, {}}}};
  report.results[0].add({R"({"rank":0,"pss_mb":1,"state_mb":1,"step_ms":[100]})"});
  report.results[1].add({R"({"rank":0,"pss_mb":1,"state_mb":1,"step_ms":[80]})"});
  report.results[2].add({R"({"rank":0,"pss_mb":1,"state_mb":1,"step_ms":[104]})"});
  const auto json = nlohmann::json::parse(as_json({report}));
  EXPECT_EQ(json[2]["shards"], 8);
  EXPECT_EQ(json[2]["efficiency_base"], "plain-accumulate");
  EXPECT_DOUBLE_EQ(json[2]["efficiency"], 100.0 / 104);
  EXPECT_DOUBLE_EQ(json[0]["samples_per_second"], 2560);
  const std::string table = as_table({report});
  EXPECT_THAT(table, HasSubstr("8 shards on 2 workers"));
  EXPECT_THAT(table,
              HasSubstr("lockstep-shm-fused takes 1.040 times the time of plain-accumulate\n"));
  EXPECT_THAT(table, HasSubstr("takes 1.300 times the time of plain-accumulate-flat\n"));
}

std::vector<StepReport> two_rows() {
  std::vector<StepReport> rows;
  for (const int workers : {4, 2}) {
    rows.push_back({.workers = workers,
                    .shards = workers,
                    .threads = 8 / workers,
                    .model = "mlp",
                    .batch = 32,
                    .optimizer = "sgd",
                    .results = {}});
  }
  rows[0].results = {steps_of("plain", 64), steps_of("lockstep-shm", 128)};
  rows[1].results = {steps_of("plain", 32)};
  return rows;
}

TEST(BenchReportTest, EveryRowHasATableAndObjectsOfItsOwn) {
  auto rows = two_rows();
  rows[0].results[0].settings = rows[1].results[0].settings = "never talk";
  const std::string table = as_table(rows);
  const std::size_t first = table.find("mlp, 4 workers of 2 threads, batch 32 each");
  EXPECT_NE(first, std::string::npos);
  EXPECT_NE(table.find("mlp, 2 workers of 4 threads, batch 32 each", first), std::string::npos);
  EXPECT_EQ(table.find("never talk"), table.rfind("never talk")) << table;
  const auto json = nlohmann::json::parse(as_json(rows));
  ASSERT_THAT(json, SizeIs(3));
  EXPECT_EQ(json[1]["system"], "lockstep-shm");
  EXPECT_EQ(json[1]["threads"], 2);
  EXPECT_DOUBLE_EQ(json[1]["efficiency"], 0.5);
  EXPECT_EQ(json[2]["workers"], 2);
  EXPECT_DOUBLE_EQ(json[2]["efficiency"], 1);
}

TEST(BenchPlotTest, SeveralRowsAreLinesOverWorkers) {
  const std::string picture = as_plot(two_rows());
  const std::size_t two = picture.find(">2 × 4<");
  EXPECT_NE(two, std::string::npos);
  EXPECT_NE(picture.find(">4 × 2<", two), std::string::npos);  // to its right
  EXPECT_THAT(picture, HasSubstr(">lockstep-shm<"));
  EXPECT_THAT(picture, HasSubstr("<polyline"));
  EXPECT_THAT(as_plot({two_rows()[0]}), Not(HasSubstr("<polyline")));
}

CudaStepReport cuda_report(std::vector<std::string> words) {
  words.insert(words.begin(), {"--device", "cuda"});
  CudaStepReport report{parse_step_arguments(words), {}};
  for (const char* name : {"drop-in", "drop-in-forced", "trainer", "pytorch-graph"}) {
    report.results.emplace_back();
    report.results.back().system = name;
    report.results.back().settings = std::string("how ") + name + " runs";
  }
  report.results[0].add({R"({"rank":0,"buckets":0,"graph_shards":null,"step_ms":[9,10,11]})"});
  report.results[1].add({R"({"rank":0,"buckets":6,"buckets_before_end":5,"step_ms":[10,10]})"});
  report.results[1].add({R"({"rank":0,"buckets":6,"buckets_before_end":5,"step_ms":[11,11]})"});
  report.results[2].add(
      {R"({"rank":0,"graph_shards":20,"eager_shards":3,"eager_reason":"a hook","step_ms":[8]})"});
  report.results[3].add({R"({"rank":0,"step_ms":[6.4]})"});
  return report;
}

TEST(BenchReportTest, AGpuStepsJsonNamesWhoseTimeEachIsDividedBy) {
  const auto json = nlohmann::json::parse(as_json(cuda_report({"--model", "gpt"})));
  ASSERT_THAT(json, SizeIs(4));
  EXPECT_EQ(json[0]["device"], "cuda");
  EXPECT_EQ(json[0]["gpt_size"], "gpt2");
  EXPECT_EQ(json[0]["precision"], "bf16");
  EXPECT_EQ(json[0]["step_ms_p50"], 10);
  EXPECT_EQ(json[0]["step_ms_q1"], 9.5);
  EXPECT_EQ(json[0]["step_ms_q3"], 10.5);
  EXPECT_DOUBLE_EQ(json[0]["tokens_per_second"], 819'200);
  EXPECT_EQ(json[0]["ratio_base"], "pytorch-ddp-views");
  EXPECT_TRUE(json[0]["ratio"].is_null());  // it was not measured
  EXPECT_EQ(json[1]["ratio_base"], "drop-in");
  EXPECT_DOUBLE_EQ(json[1]["ratio"], 1.05);
  EXPECT_EQ(json[1]["turns_ms_p50"], (std::vector<double>{10, 11}));
  EXPECT_DOUBLE_EQ(json[1]["ratio_of_fastest_turns"], 1);
  EXPECT_EQ(json[1]["steps"], 4);
  EXPECT_EQ(json[1]["buckets"], 6);
  EXPECT_EQ(json[1]["buckets_before_end"], 5);
  EXPECT_TRUE(json[1]["graph_shards"].is_null());
  EXPECT_DOUBLE_EQ(json[2]["ratio"], 1.25);
  EXPECT_EQ(json[2]["graph_shards"], 20);
  EXPECT_EQ(json[2]["eager_shards"], 3);
  EXPECT_TRUE(json[3]["ratio_base"].is_null());
}

TEST(BenchReportTest, AGpuStepsTableSaysRatiosAndHowEachWasRun) {
  const std::string table = as_table(cuda_report({"--model", "resnet18"}));
  EXPECT_THAT(table,
              HasSubstr("training steps of resnet18 on cuda, 1 worker, batch 256 each, adamw, "
                        "float32, TF32 in convolutions only"));
  EXPECT_THAT(table, HasSubstr("drop-in-forced takes 1.050 times the time of drop-in, the fastest "
                               "turns 1.000\n"));
  EXPECT_THAT(table, HasSubstr("trainer takes 1.250 times the time of pytorch-graph\n"));
  EXPECT_THAT(table, Not(HasSubstr("the time of pytorch-ddp-views")));
  EXPECT_THAT(table, HasSubstr("trainer ran 3 of 23 shards eagerly: a hook\n"));
  EXPECT_THAT(table, HasSubstr("how pytorch-graph runs"));
  EXPECT_THAT(as_plot(cuda_report({})), HasSubstr("drop-in-forced"));
}

TEST(BenchReportTest, AGpuRunWithoutTimesIsNone) {
  CudaStepResult result;
  EXPECT_THROW(result.add({}), BadInput);
  EXPECT_THROW(result.add({R"({"rank":0,"step_ms":[]})"}), BadInput);
  EXPECT_THROW(result.add({R"({"rank":0})"}), std::exception);
}

TEST(BenchReportTest, TheCostOfTheOrderIsSaidForEverySizeWhereBothWereMeasured) {
  AllreduceReport report{4, {{kInPlaceTree, "", {}}, {kInPlaceRanks, "", {}}}};
  report.results[0].add({R"({"bytes":1024,"us":[3]})", R"({"bytes":2048,"us":[5]})"});
  EXPECT_THAT(as_table(report), Not(HasSubstr("times the time")));
  report.results[1].add({R"({"bytes":1024,"us":[2]})"});
  EXPECT_THAT(as_table(report),
              HasSubstr("in-place-tree takes this many times the time of in-place-ranks: 1.500 at "
                        "1 KiB\n"));
}

// Every element that is opened is closed, in order. Enough of XML for what plot.cpp writes.
bool well_formed(std::string_view text) {
  std::vector<std::string> open;
  for (std::size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    const std::size_t end = text.find('>', at);
    if (end == std::string_view::npos) return false;
    const std::string_view tag = text.substr(at + 1, end - at - 1);
    const std::string_view name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.starts_with('/')) {
      if (open.empty() || "/" + open.back() != tag) return false;
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.emplace_back(name);
    }
  }
  return open.empty();
}

TEST(BenchPlotTest, PicturesAreWellFormedWhateverIsInThem) {
  const LinePlot lines{
      "a < b & c", "x", {{"one", {{1024, 0.1}, {2048, 3}}, false}, {"two", {}, true}}};
  const BarPlot bars{"steps", "ms", {{"<plain>", 50, 49, 52}, {"none", 0, 0, 0}}};
  for (const std::string& picture :
       {draw(lines), draw(bars), draw(LinePlot{}), draw(BarPlot{}), as_plot(small_report()),
        as_plot(std::vector<StepReport>(1)), as_plot(std::vector<StepReport>(2)),
        as_plot(CudaStepReport{})}) {
    EXPECT_TRUE(well_formed(picture)) << picture;
    EXPECT_THAT(picture, Not(HasSubstr("nan")));
    EXPECT_THAT(picture, Not(HasSubstr("inf")));
  }
  EXPECT_THAT(draw(lines), HasSubstr("a &lt; b &amp; c"));
  EXPECT_THAT(draw(lines), HasSubstr("1 KiB"));
  EXPECT_THAT(draw(bars), HasSubstr("&lt;plain&gt;"));
}

TEST(BenchPlotTest, NamesOfBarsHaveRoom) {
  const BarPlot bars{"", "ms", {{std::string(45, 'm'), 50, 49, 52}}};
  EXPECT_THAT(draw(bars), HasSubstr("x=\"307.0\"")) << "where the name ends: 45 letters and some";
}

TEST(BenchReportTest, ARunWithoutTimesIsNone) {
  AllreduceResult result{"gloo", "", {}};
  EXPECT_THROW(result.add({}), BadInput);
  result.add({R"({"bytes":1024,"us":[3]})"});
  EXPECT_THROW(result.add({}), BadInput);  // whatever earlier runs printed
  EXPECT_THROW(result.add({R"({"bytes":1024,"us":[]})"}), BadInput);
  EXPECT_THROW(result.add({R"({"bytes":1024})"}), std::exception);
  StepResult step;
  EXPECT_THROW(step.add({}), BadInput);
  EXPECT_THROW(step.add({R"({"rank":0,"pss_mb":1,"state_mb":1,"step_ms":[]})"}), BadInput);
}

}  // namespace
}  // namespace lockstep::bench
