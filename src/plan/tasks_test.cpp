#include "plan/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace lockstep::plan::tasks {
namespace {

using testing::HasSubstr;

constexpr int kShards = 2;
constexpr StepRange kSteps{10, 13};

// Shard 1 has no samples in the last step, and few in the first.
RoundTasks tasks_with(const Asynchronous& rule) {
  return {kSteps, kShards, rule, {6, 2, 8, 8, 8, 0}};
}

Asynchronous staleness(std::int64_t most) {
  Asynchronous rule;
  rule.staleness = most;
  return rule;
}

Asynchronous backups(int count) {
  Asynchronous rule;
  rule.backups = count;
  return rule;
}

class Book {
 public:
  explicit Book(const Asynchronous& rule)
      : tasks_(tasks_with(rule)), memory_(tasks_), book_(tasks_, memory_.memory()) {
    book_.clear();
  }
  TaskBook* operator->() { return &book_; }
  const RoundTasks& tasks() const { return tasks_; }
  void reopen() { TaskBook::reopen(memory_.memory()); }
  // The whole life of a task whose loss is its number.
  TaskBook::Effect finish(const Task& task) {
    const std::int64_t seen = book_.begin();
    return enter(task, seen);
  }
  TaskBook::Effect enter(const Task& task, std::int64_t seen) {
    const auto number = tasks_.number(task);
    const auto samples = static_cast<double>(tasks_.samples(number));
    return book_.enter(task, seen, {static_cast<double>(number) * samples, samples});
  }

 private:
  RoundTasks tasks_;
  OwnTaskMemory memory_;
  TaskBook book_;
};

TEST(RoundTasks, HaveNumbersStepByStep) {
  const RoundTasks tasks = tasks_with(staleness(1));
  EXPECT_EQ(tasks.count(), 6);
  for (std::int64_t number = 0; number < tasks.count(); ++number)
    EXPECT_EQ(tasks.number(tasks.task(number)), number);
  EXPECT_EQ(tasks.task(3), (Task{1, 1}));
  EXPECT_EQ(tasks.number(OrderedUpdate{11, 1, 0}), 3);
}

TEST(RoundTasks, WithoutSamplesAreNoUpdates) {
  EXPECT_EQ(tasks_with(staleness(1)).updates(), 5);
  EXPECT_EQ(tasks_with(staleness(1)).samples_of_step(2), 8);
}

TEST(RoundTasks, ABackupIsNotWaitedFor) {
  const RoundTasks tasks = tasks_with(backups(1));
  EXPECT_EQ(tasks.needed(0), 1);
  EXPECT_EQ(tasks.needed(2), 1) << "one counts in every step";
  EXPECT_EQ(tasks.updates(), 3);
}

TEST(RoundTasks, SayWhyAnOrderIsNotTheirs) {
  const RoundTasks tasks = tasks_with(staleness(1));
  const RoundOrder own{kSteps, {{10, 1, 0}, {10, 0, 0}, {11, 0, 1}, {11, 1, 2}, {12, 0, 4}}};
  EXPECT_EQ(tasks.misfit(own), "");
  RoundOrder shorter = own;
  shorter.steps.end = 12;
  EXPECT_THAT(tasks.misfit(shorter), HasSubstr("ends before step 12, and here before step 13"));
  RoundOrder empty_shard = own;
  empty_shard.updates.back().shard = 1;
  EXPECT_THAT(tasks.misfit(empty_shard), HasSubstr("shard 1 has no samples in step 12"));
  RoundOrder fewer = own;
  fewer.updates.pop_back();
  EXPECT_THAT(tasks.misfit(fewer), HasSubstr("has other shards"));
}

TEST(RoundTasks, WithBackupsAnOrderGoesStepByStep) {
  const RoundTasks tasks = tasks_with(backups(1));
  EXPECT_EQ(tasks.misfit({kSteps, {{10, 1, 0}, {11, 0, 1}, {12, 0, 2}}}), "");
  EXPECT_NE(tasks.misfit({kSteps, {{11, 0, 0}, {10, 1, 1}, {12, 0, 2}}}), "");
  EXPECT_NE(tasks.misfit({kSteps, {{10, 1, 0}, {11, 0, 0}, {12, 0, 2}}}), "")
      << "it has seen the weights of the step before";
}

TEST(TaskBook, NobodyGetsFurtherAheadThanTheBound) {
  Book book(staleness(1));
  for (const Task& expected : {Task{0, 0}, Task{0, 1}, Task{1, 0}, Task{1, 1}})
    EXPECT_EQ(book->claim(), expected);
  EXPECT_FALSE(book->claim()) << "step 0 is open, so step 2 is too far";
  EXPECT_FALSE(book->all_claimed());
  book.finish({0, 1});
  EXPECT_FALSE(book->claim());
  book.finish({0, 0});
  EXPECT_EQ(book->claim(), (Task{2, 0}));
  EXPECT_FALSE(book->claim()) << "the last task has no samples";
  EXPECT_TRUE(book->all_claimed());
}

TEST(TaskBook, WithoutABoundATaskNeverWaits) {
  Book book(staleness(Asynchronous::kUnbounded));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(book->claim());
  EXPECT_FALSE(book->claim());
  EXPECT_TRUE(book->all_claimed());
}

TEST(TaskBook, AnUpdateHasItsPartOfTheRate) {
  Book book(staleness(1));
  const auto few = book.finish({0, 1});
  EXPECT_TRUE(few.counts && few.moves && !few.adds);
  EXPECT_EQ(few.number, 1);
  EXPECT_DOUBLE_EQ(few.rate, 2.0 / 8);
  EXPECT_DOUBLE_EQ(book.finish({0, 0}).rate, 6.0 / 8);
}

TEST(TaskBook, AStaleUpdateMovesLessIfAsked) {
  Asynchronous rule = staleness(2);
  rule.slows_if_stale = true;
  Book book(rule);
  const std::int64_t seen = book->begin();
  for (const Task& before : {Task{0, 0}, Task{0, 1}, Task{1, 1}}) book.finish(before);
  EXPECT_DOUBLE_EQ(book.enter({1, 0}, seen).rate, 0.5 * rate_if_stale(3, kShards));
}

TEST(TaskBook, WithBackupsTheLastThatCountsMovesTheWeights) {
  Asynchronous rule = backups(1);
  RoundTasks tasks({0, 1}, 3, rule, {4, 2, 2});
  OwnTaskMemory memory(tasks);
  TaskBook book(tasks, memory.memory());
  book.clear();
  const auto first = book.enter({0, 1}, 0, {1, 2});
  EXPECT_TRUE(first.counts && first.adds && first.first && !first.moves);
  EXPECT_EQ(book.counts().in_weights, 0);
  const auto last = book.enter({0, 0}, 0, {2, 4});
  EXPECT_TRUE(last.counts && last.adds && !last.first && last.moves);
  EXPECT_DOUBLE_EQ(last.divisor, 6) << "the samples of those that count";
  EXPECT_EQ(last.number, 1);
  EXPECT_EQ(book.counts().in_weights, 2);
  EXPECT_FALSE(book.enter({0, 2}, 0, {9, 2}).counts) << "it comes when its step is done";
  EXPECT_TRUE(book.is_complete());
  EXPECT_DOUBLE_EQ(book.loss().sum, 3);
  EXPECT_DOUBLE_EQ(book.loss().samples, 6);
}

TEST(TaskBook, ATaskOfAStepThatIsDoneIsNotTaken) {
  Book book(backups(1));
  EXPECT_EQ(book->claim(), (Task{0, 0}));
  book.finish({0, 0});
  EXPECT_EQ(book->claim(), (Task{1, 0})) << "step 0 needs no backup any more";
}

TEST(TaskBook, WhatALostWorkerHasNotGivenIsClaimedAgain) {
  Book book(staleness(1));
  for (int i = 0; i < 4; ++i) book->claim();
  book.finish({0, 1});
  book.finish({1, 0});
  book.reopen();
  for (const Task& expected : {Task{0, 0}, Task{1, 1}}) EXPECT_EQ(book->claim(), expected);
  EXPECT_FALSE(book->claim()) << "step 0 is open, so step 2 is too far";
  book.finish({0, 0});
  EXPECT_EQ(book->claim(), (Task{2, 0}));
  book.finish({2, 0});
  EXPECT_FALSE(book->is_complete());
  EXPECT_EQ(book.finish({1, 1}).number, 5);
  EXPECT_TRUE(book->is_complete());
  EXPECT_EQ(book.tasks().misfit(book->order()), "");
}

TEST(TaskBook, WithBackupsALostGradientThatCountedStays) {
  const RoundTasks tasks({0, 1}, 3, backups(1), {4, 2, 2});
  OwnTaskMemory memory(tasks);
  TaskBook book(tasks, memory.memory());
  book.clear();
  for (int i = 0; i < 3; ++i) book.claim();
  book.enter({0, 1}, 0, {1, 2});
  TaskBook::reopen(memory.memory());
  EXPECT_EQ(book.claim(), (Task{0, 0}));
  EXPECT_EQ(book.claim(), (Task{0, 2})) << "shard 1 is in the sum";
  EXPECT_TRUE(book.enter({0, 2}, 0, {1, 2}).moves);
  EXPECT_FALSE(book.claim());
}

TEST(TaskBook, TheOrderSaysWhatHasComeAndInWhichOrder) {
  Book book(staleness(Asynchronous::kUnbounded));
  for (const Task& task : {Task{1, 1}, Task{0, 0}, Task{2, 0}, Task{1, 0}, Task{0, 1}})
    book.finish(task);
  ASSERT_TRUE(book->is_complete());
  const RoundOrder expected{kSteps, {{11, 1, 0}, {10, 0, 1}, {12, 0, 2}, {11, 0, 3}, {10, 1, 4}}};
  EXPECT_EQ(book->order(), expected);
  EXPECT_EQ(book.tasks().misfit(book->order()), "");
  EXPECT_DOUBLE_EQ(book->loss().sum, 3 * 8 + 0 + 4 * 8 + 2 * 8 + 1 * 2);
}

}  // namespace
}  // namespace lockstep::plan::tasks
