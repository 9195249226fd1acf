// What workers of a host share in an asynchronous round, and how it goes to the workers of the next generation.
#include "torch/step/course.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "tests/torch/nets.h"

namespace lockstep::testing {
namespace {

using steps::Course;
using Opened = Course::Opened;

constexpr Course::Shape kShape{.weights = 4096, .buffers = 8, .sum = 0, .steps = 3, .shards = 2};
constexpr int kWorkers = 2;

const plan::RoundTasks& tasks() {
  static const plan::RoundTasks all({10, 13}, kShape.shards, {.staleness = 2}, {1, 1, 1, 1, 1, 1});
  return all;
}

// The first update of a round after 10 steps: the weights are 7.
void begin_round(Course& course) {
  const auto turn = course.now();
  if (course.open(10) != Opened::kNew) return;
  plan::TaskBook book(tasks(), course.book());
  book.clear();
  std::fill_n(course.weights(), kShape.weights, std::byte{7});
  for (int i = 0; i < 3; ++i) book.claim();
  book.enter({0, 1}, 0, {5, 1});
  course.reports().add("largest", 2, 1);
  course.wrote();
}

TEST(Course, GoesOnInTheNextGenerationWithWhatWasDone) {
  std::atomic<int> went_on = 0, made_new = 0;
  in_world(kWorkers, "shm", [&](World& world) {
    Course before(world.comm(), kShape, {});
    begin_round(before);
    world.comm().barrier().wait();
    ASSERT_TRUE(before.is_whole(10));
    EXPECT_FALSE(before.is_whole(13)) << "it is another round";
    // Twice: the generation after it is lost before anybody has opened the round.
    Course lost(world.comm(), kShape, {&before, world.rank() == 0});
    Course after(world.comm(), kShape, {&lost, world.rank() == 1});
    {
      const auto turn = after.now();
      if (after.open(10) == Opened::kGoesOn) ++went_on;
      EXPECT_EQ(std::count(after.weights(), after.weights() + kShape.weights, std::byte{7}),
                static_cast<std::ptrdiff_t>(kShape.weights));
      plan::TaskBook book(tasks(), after.book());
      EXPECT_EQ(after.updates(), 1);
      if (went_on == 1) {
        EXPECT_EQ(book.claim(), (plan::Task{0, 0})) << "the dead worker had it";
        EXPECT_EQ(book.claim(), (plan::Task{1, 0})) << "(0, 1) is in the book";
      }
    }
    world.comm().barrier().wait();
    const auto turn = after.now();
    if (after.open(13) == Opened::kNew) ++made_new;
  });
  EXPECT_EQ(went_on, kWorkers);
  EXPECT_EQ(made_new, 1) << "the next round is as any";
}

TEST(Course, OfAWorkerThatDiedWhileItWroteDoesNotGoOn) {
  in_world(1, [](World& world) {
    Course course(world.comm(), kShape, {});
    EXPECT_FALSE(course.is_whole(0)) << "nobody has opened it";
    ASSERT_EQ(course.open(0), Opened::kNew);
    EXPECT_FALSE(course.is_whole(0)) << "it is not filled";
    course.wrote();
    EXPECT_TRUE(course.is_whole(0));
    course.will_write();
    EXPECT_FALSE(course.is_whole(0));
  });
}

}  // namespace
}  // namespace lockstep::testing
