// Averages over workers: the same bits on any number of them, and what is refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/metrics.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "plan/exact_sum.h"
#include "tests/torch/loops.h"

namespace lockstep::testing::metrics_cases {
namespace {

using loops::same_on_all;
using ::testing::HasSubstr;

// Losses of very different sizes: every order of additions would round differently.
std::vector<double> losses() {
  std::mt19937_64 random(3);
  std::vector<double> all;
  for (int i = 0; i < 500; ++i)
    all.push_back(std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 80) - 100));
  return all;
}

std::string sums(World& world) {
  Metrics metrics(world, {"loss", "right"});
  const std::vector<double> all = losses();
  for (std::size_t i = static_cast<std::size_t>(world.rank()); i < all.size();
       i += static_cast<std::size_t>(world.size())) {
    if (i % 2 == 0) {
      metrics.add("loss", all[i], 1);
    } else {
      metrics.add("loss", torch::tensor(all[i], torch::kFloat64), 1);
    }
    metrics.add("right", torch::tensor(static_cast<std::int64_t>(i % 3)), torch::tensor({2.0F}));
  }
  const Averages first = metrics.reduce();
  if (world.leader()) metrics.add("loss", 7, 2);  // the others have nothing more
  const Averages second = metrics.reduce();
  EXPECT_EQ(second.mean("loss"), 3.5);
  EXPECT_EQ(second.weight("right"), 0);
  EXPECT_EQ(first.weight("loss"), 500);
  return fmt::format("{} {} {}", first.sum("loss"), first.mean("loss"), first.mean("right"));
}

TEST(MetricsTest, HaveTheSameBitsOnAnyNumberOfWorkers) {
  plan::ExactSum sum;
  for (const double one : losses()) sum.add(one);
  const double right = 499.0 / 1000;  // 167 times 0, 167 times 1, 166 times 2
  const std::string expected = fmt::format("{} {} {}", sum.value(), sum.value() / 500, right);
  World alone = World::over(connect_alone());
  EXPECT_EQ(sums(alone), expected);
  for (const std::string& engine : cpu_engines()) {
    for (const int workers : {2, 3}) EXPECT_EQ(same_on_all(workers, engine, sums), expected);
  }
}

// What was not read is not left to the others, who still need it.
TEST(MetricsTest, MayBeDroppedUnread) {
  in_world(3, "shm", [](World& world) {
    for (int times = 0; times < 20; ++times) {
      Metrics metrics(world, {"loss"});
      metrics.add("loss", world.rank(), 1);
      const Averages all = metrics.reduce();
      if (world.leader()) {
        EXPECT_EQ(all.mean("loss"), 1);
      }
    }
    world.comm().barrier().wait();
  });
}

TEST(MetricsTest, MayBeReadAfterTheMetricsHasEnded) {
  in_world(2, "shm", [](World& world) {
    std::optional<Averages> all;
    {
      Metrics metrics(world, {"loss"});
      metrics.add("loss", 1, 4);
      all.emplace(metrics.reduce());
    }
    EXPECT_EQ(all->mean("loss"), 0.25);
  });
}

TEST(MetricsTest, KeepWhatIsNoNumber) {
  World alone = World::over(connect_alone());
  Metrics metrics(alone, {"loss"});
  metrics.add("loss", std::nan(""), 1);
  EXPECT_TRUE(std::isnan(metrics.reduce().mean("loss")));
  metrics.add("loss", torch::tensor(1.0), torch::tensor(-1.0));  // seen in reduce(), which all call
  EXPECT_TRUE(std::isnan(metrics.reduce().mean("loss")));
}

template <typename Body>
void expect_refused(const Body& body, const std::string& words) {
  try {
    body();
    ADD_FAILURE() << "not refused: " << words;
  } catch (const BadInput& error) {
    EXPECT_THAT(error.what(), HasSubstr(words));
  }
}

TEST(MetricsTest, BadInputIsRefusedInOneLine) {
  World alone = World::over(connect_alone());
  expect_refused([&] { Metrics(alone, {"a", "a"}); }, "two metrics are called a");
  expect_refused([&] { Metrics(alone, {""}); }, "no name");
  Metrics metrics(alone, {"loss", "right"});
  expect_refused([&] { metrics.add("los", 1, 1); }, "no metric los: there are loss, right");
  expect_refused([&] { metrics.add("loss", 1, -1); }, "a weight of the metric loss is -1");
  expect_refused([&] { metrics.add("loss", torch::zeros({2}), 1); }, "one real element");
  expect_refused([&] { metrics.add("loss", torch::Tensor(), 1); }, "one real element");
  expect_refused([&] { (void)metrics.reduce().mean("loss"); }, "nobody has added anything");
}

TEST(MetricsTest, OtherNamesOnOneWorkerAreAMismatch) {
  in_world(2, "thread", [](World& world) {
    const std::string name = world.leader() ? "loss" : "losses";
    EXPECT_THROW(Metrics(world, {name}), Mismatch);
  });
}

}  // namespace
}  // namespace lockstep::testing::metrics_cases
