#include "plan/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;

// Step by step, from the definition.
std::vector<ShardStep> in_order(const Rounds& rounds, StepRange loop, ShardRange hosted) {
  std::vector<ShardStep> all;
  for (std::int64_t first = loop.first; first < loop.end;) {
    const std::int64_t end = std::min(rounds.end(first), loop.end);
    for (int shard = hosted.begin; shard < hosted.end; ++shard)
      for (std::int64_t step = first; step < end; ++step) all.push_back({step, shard});
    first = end;
  }
  return all;
}

TEST(Rounds, WithoutLocalStepsEachStepIsOne) {
  const Rounds rounds;
  for (const std::int64_t step : {0, 1, 17}) EXPECT_EQ(rounds.end(step), step + 1);
  EXPECT_EQ(rounds.batch(5, {10, 20}, {2, 4}), (ShardStep{12, 3}));
}

TEST(Rounds, EndAtMultiplesOfTheirLengthAndWhereAStageEnds) {
  const Rounds rounds({.stages = {{0, 1}, {10, 4}, {17, 100}}});
  EXPECT_EQ(rounds.end(9), 10);
  EXPECT_EQ(rounds.end(10), 14);
  EXPECT_EQ(rounds.end(13), 14);
  EXPECT_EQ(rounds.end(14), 17);
  EXPECT_EQ(rounds.end(17), 117);
}

TEST(Rounds, TakeFragmentsInTurn) {
  const Rounds rounds(LocalSteps::streaming_diloco(12, 3));
  EXPECT_EQ(rounds.end(0), 4);
  for (const auto& [step, fragment] : {std::pair{0, 0}, {3, 0}, {4, 1}, {8, 2}, {11, 2}, {12, 0}})
    EXPECT_EQ(rounds.fragment(step), fragment) << step;
  EXPECT_EQ(Rounds(LocalSteps::sgd(4)).fragment(8), 0);
  EXPECT_THROW(LocalSteps::streaming_diloco(10, 4), BadInput);
  EXPECT_THROW(LocalSteps::streaming_diloco(4, 1), BadInput);
}

TEST(Rounds, ExchangesAreCounted) {
  EXPECT_EQ(Rounds().exchanges(7), 7);
  EXPECT_EQ(Rounds(LocalSteps::sgd(4)).exchanges(8), 2);
  EXPECT_EQ(Rounds(LocalSteps::sgd(4)).exchanges(9), 3);
  LocalSteps later = LocalSteps::sgd(4);
  later.stages = {{0, 1}, {10, 4}};
  EXPECT_EQ(Rounds(later).exchanges(10), 10);
  EXPECT_EQ(Rounds(later).exchanges(18), 12);
  LocalSteps streamed = LocalSteps::sgd(4);
  streamed.streaming = Streaming{.fragments = 3};
  EXPECT_EQ(Rounds(streamed).exchanges(12), 1);
  EXPECT_EQ(Rounds(streamed).exchanges(13), 2);
  const std::int64_t endless = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(Rounds(LocalSteps::sgd(4)).exchanges(endless), endless / 4 + 1);
}

TEST(Rounds, FragmentsHaveAboutAsManyBytes) {
  using Ends = std::vector<std::size_t>;
  const auto ends = [](const std::vector<std::size_t>& bytes, int fragments) {
    return fragment_ends(bytes, fragments);
  };
  EXPECT_EQ(ends({1, 1, 1, 1, 1, 1}, 3), (Ends{2, 4, 6}));
  EXPECT_EQ(ends({100, 1, 1, 1}, 3), (Ends{1, 2, 4}));
  EXPECT_EQ(ends({1, 1, 1, 100}, 3), (Ends{2, 3, 4}));
  EXPECT_EQ(ends({0, 5, 0, 5, 0}, 2), (Ends{2, 5}));  // what is not trained goes with a neighbour
  EXPECT_EQ(ends({7}, 1), (Ends{1}));
}

TEST(Rounds, NumberBatchesInTheOrderOfRoundsShardsAndSteps) {
  for (const LocalSteps& local : {LocalSteps{}, LocalSteps::sgd(3), LocalSteps::sgd(7),
                                  LocalSteps{.stages = {{0, 1}, {5, 4}, {14, 3}}}}) {
    const Rounds rounds(local);
    for (const StepRange loop : {StepRange{0, 25}, {3, 24}, {6, 7}, {13, 40}}) {
      for (const ShardRange hosted : {ShardRange{0, 1}, {2, 5}}) {
        const auto expected = in_order(rounds, loop, hosted);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_EQ(rounds.batch(static_cast<std::int64_t>(i), loop, hosted), expected[i])
              << to_string(local) << ", " << loop.first << " to " << loop.end << ", batch " << i;
        }
      }
    }
  }
}

TEST(Rounds, OfAnEndlessLoopAreFoundAtOnce) {
  const Rounds rounds(LocalSteps::sgd(500));
  const std::int64_t far = std::int64_t{1} << 40;
  EXPECT_EQ(rounds.batch(std::int64_t{500} * 1'000'000'000, {0, far}, {0, 2}).step,
            std::int64_t{250} * 1'000'000'000);
}

std::string refused(const LocalSteps& local) {
  try {
    const Rounds rounds(local);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Rounds, OptionsThatMakeNoSenseAreRefused) {
  EXPECT_THAT(refused(LocalSteps::sgd(0)), HasSubstr("a round of 0 steps"));
  EXPECT_THAT(refused(LocalSteps::sgd(-3)), HasSubstr("a round of -3 steps: give 1 to"));
  EXPECT_THAT(refused({.stages = {{1, 4}}}), HasSubstr("begin with step 0"));
  EXPECT_THAT(refused({.stages = {{0, 4}, {8, 2}, {8, 3}}}),
              HasSubstr("later than the one before"));
  EXPECT_THAT(refused(LocalSteps::post_local_sgd(0, 4)), HasSubstr("later than the one before"));
  EXPECT_THAT(refused({.stages = {{0, 4}}, .outer_lr = 0}), HasSubstr("learning rate 0"));
  EXPECT_THAT(refused({.stages = {{0, 4}}, .outer_lr = 1e39}), HasSubstr("learning rate 1e+39"));
  EXPECT_THAT(refused({.stages = {{0, 4}}, .outer_momentum = 1}), HasSubstr("momentum 1"));
  EXPECT_THAT(refused({.stages = {{0, 4}}, .outer_lr = std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("learning rate nan"));
  EXPECT_THAT(refused({.stages = {{0, 4}}, .outer_nesterov = true}), HasSubstr("Nesterov"));
}

TEST(Rounds, AreSaidInWords) {
  EXPECT_EQ(to_string(LocalSteps::diloco()),
            "rounds of 500 steps from step 0, state kept, outer lr 0.7 momentum 0.9 nesterov");
  EXPECT_EQ(to_string(LocalSteps::post_local_sgd(100, 8)),
            "rounds of 1 step from step 0, rounds of 8 steps from step 100, state kept, outer lr 1 "
            "momentum 0");
}

TEST(Rounds, AsynchronousRoundsSaySo) {
  EXPECT_EQ(to_string(LocalSteps::stale(4, 20)),
            "asynchronous, rounds of 20 steps from step 0, staleness 4");
  LocalSteps local = LocalSteps::stale(Asynchronous::kUnbounded);
  local.asynchronous->slows_if_stale = true;
  local.asynchronous->delay_compensation = 0.04;
  EXPECT_EQ(to_string(local),
            "asynchronous, rounds of 50 steps from step 0, no bound, slower if stale, delay "
            "compensation 0.04");
  EXPECT_FALSE(LocalSteps::stale(0).enabled());
  EXPECT_EQ(to_string(LocalSteps::with_backups(1, 20)),
            "all shards but the last 1, rounds of 20 steps from step 0");
  EXPECT_FALSE(LocalSteps::with_backups(0).enabled());
  LocalSteps without_rounds;
  without_rounds.asynchronous.emplace();
  EXPECT_THAT(refused(without_rounds), HasSubstr("asynchronous steps without rounds"));
}

TEST(Rounds, NumbersThatMakeNoAsynchronousRoundAreRefused) {
  EXPECT_THAT(refused(LocalSteps::stale(-2)), HasSubstr("a staleness of -2"));
  EXPECT_THAT(refused(LocalSteps::stale(1, 0)), HasSubstr("a round of 0"));
  EXPECT_THAT(refused(LocalSteps::stale(1, 1 << 21)), HasSubstr("at most 1048576"));
  LocalSteps local = LocalSteps::stale(1);
  local.asynchronous->staleness = 0;
  EXPECT_THAT(refused(local), HasSubstr("0 is the synchronous step"));
  local = LocalSteps::stale(1);
  local.asynchronous->delay_compensation = -1;
  EXPECT_THAT(refused(local), HasSubstr("a delay compensation of -1"));
  EXPECT_THAT(refused(LocalSteps::with_backups(-1)), HasSubstr("-1 backup shards"));
  local = LocalSteps::with_backups(1);
  local.asynchronous->staleness = 2;
  EXPECT_THAT(refused(local), HasSubstr("no stale gradients"));
  local = LocalSteps::stale(1);
  local.outer_lr = 0.5;
  EXPECT_THAT(refused(local), HasSubstr("no outer update"));
}

}  // namespace
}  // namespace lockstep::plan
