// Rounds of a clerk and workers that compute as fast as a seed says. What an owner sees is in its log, and nothing else.
#include "plan/clerk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace lockstep::plan::clerk {
namespace {

using testing::ElementsAre;
using Kind = Clerk::LogEntry::Kind;

constexpr int kShards = 4;
constexpr std::int64_t kSteps = 5;

RoundTasks tasks_with(const Asynchronous& rule) {
  std::vector<std::int64_t> samples(kSteps * kShards, 8);
  samples[kShards + 2] = 0;  // shard 2 has none in step 1,
  samples.back() = 3;        // and the last one is short
  return {{10, 10 + kSteps}, kShards, rule, samples};
}

TaskLoss loss_of(const RoundTasks& tasks, std::int64_t task) {
  const auto samples = static_cast<double>(tasks.samples(task));
  return {static_cast<double>(task) * samples, samples};
}

// A worker: what it does next, if it waits for nothing.
struct Worker {
  enum class Next { kAsk, kTake, kDone, kNothing };
  Next next = Next::kAsk;
  std::int64_t task = -1;
};

struct Round {
  std::vector<Clerk::LogEntry> log;
  RoundOrder order;
  std::map<int, int> dropped;  // by worker, as the clerk has told them
  int released = 0;            // workers that know that no task is left
};

// Until nobody can do anything.
Round run(const RoundTasks& tasks, int count, unsigned seed, const RoundOrder* replayed = nullptr) {
  Clerk clerk(tasks, count, replayed);
  std::vector<Worker> workers(static_cast<std::size_t>(count));
  std::mt19937 random(seed);
  Round round;
  while (true) {
    std::vector<int> able;
    for (int number = 0; number < count; ++number)
      if (workers[static_cast<std::size_t>(number)].next != Worker::Next::kNothing)
        able.push_back(number);
    if (able.empty()) break;
    const int number = able[random() % able.size()];
    Worker& worker = workers[static_cast<std::size_t>(number)];
    const auto now = std::exchange(worker.next, Worker::Next::kNothing);
    if (now == Worker::Next::kAsk) clerk.ask(number);
    if (now == Worker::Next::kTake) clerk.take(number, worker.task);
    if (now == Worker::Next::kDone) {
      clerk.done(number, worker.task, loss_of(tasks, worker.task));
      worker.next = Worker::Next::kAsk;
    }
    for (const auto& answer : clerk.answers()) {
      Worker& asked = workers[static_cast<std::size_t>(answer.worker)];
      round.dropped[answer.worker] += answer.was_dropped ? 1 : 0;
      round.released += answer.task < 0 ? 1 : 0;
      asked.task = answer.task;
      if (answer.task >= 0) asked.next = Worker::Next::kTake;
    }
    for (const auto& entry : clerk.log()) {
      round.log.push_back(entry);
      if (entry.kind == Kind::kGive)
        workers[static_cast<std::size_t>(entry.worker)].next = Worker::Next::kDone;
    }
  }
  round.order = clerk.order();
  return round;
}

// What every log must say, whatever the rule.
void expect_sound(const RoundTasks& tasks, int workers, const Round& round) {
  EXPECT_EQ(round.released, workers);
  ASSERT_FALSE(round.log.empty());
  EXPECT_EQ(round.log.back().kind, Kind::kEnd);
  EXPECT_EQ(tasks.misfit(round.order), "");
  std::map<std::int64_t, std::int64_t> seen;  // by task
  std::int64_t updates = 0, in_weights = 0;
  TaskLoss all;
  std::vector<OrderedUpdate> order;
  for (const auto& entry : round.log) {
    if (entry.kind == Kind::kEnd) {
      EXPECT_EQ(&entry, &round.log.back());
      EXPECT_EQ(entry.loss.sum, all.sum);
      EXPECT_EQ(entry.loss.samples, all.samples);
      continue;
    }
    EXPECT_GT(tasks.samples(entry.task), 0);
    if (entry.kind == Kind::kGive) {
      EXPECT_TRUE(seen.emplace(entry.task, entry.seen).second) << "given once";
      EXPECT_EQ(entry.seen, in_weights);
      continue;
    }
    ASSERT_TRUE(seen.contains(entry.task)) << "an update without weights";
    if (!entry.effect.counts) continue;
    const Task task = tasks.task(entry.task);
    order.push_back({tasks.steps().first + task.step, task.shard, seen[entry.task]});
    ++updates;
    if (entry.effect.moves) in_weights = updates;
    all.sum += entry.loss.sum;
    all.samples += entry.loss.samples;
  }
  EXPECT_EQ(updates, tasks.updates());
  EXPECT_EQ(order, round.order.updates);
}

Asynchronous stale(std::int64_t staleness) {
  return {.staleness = staleness};
}

Asynchronous backups(int count) {
  Asynchronous rule;
  rule.staleness = 0;
  rule.backups = count;
  return rule;
}

std::vector<Asynchronous> rules() {
  return {stale(Asynchronous::kUnbounded), stale(0), stale(1), stale(2), backups(1), backups(3)};
}

TEST(Clerk, EveryTaskIsGivenAndUsedInEveryCase) {
  for (const Asynchronous& rule : rules()) {
    const RoundTasks tasks = tasks_with(rule);
    for (int workers = 1; workers <= 6; ++workers) {
      for (unsigned seed = 0; seed < 40; ++seed) {
        SCOPED_TRACE(testing::Message() << rule.staleness << " " << rule.backups << " of "
                                        << workers << " workers, seed " << seed);
        expect_sound(tasks, workers, run(tasks, workers, seed));
      }
    }
  }
}

TEST(Clerk, NobodyGetsATaskBeyondTheBound) {
  for (const std::int64_t bound : {0, 1, 2}) {
    const RoundTasks tasks = tasks_with(stale(bound));
    for (unsigned seed = 0; seed < 40; ++seed) {
      std::vector<std::int64_t> open(kSteps);  // tasks of each step that have no update yet
      for (std::int64_t task = 0; task < tasks.count(); ++task)
        open[static_cast<std::size_t>(task / kShards)] += tasks.samples(task) > 0 ? 1 : 0;
      for (const auto& entry : run(tasks, 4, seed).log) {
        if (entry.kind == Kind::kEnd) continue;
        const auto step = static_cast<std::size_t>(tasks.task(entry.task).step);
        if (entry.kind == Kind::kUpdate) --open[step];
        std::size_t first = 0;
        while (entry.kind == Kind::kGive && open[first] == 0) ++first;
        if (entry.kind == Kind::kGive) {
          EXPECT_LE(step, first + static_cast<std::size_t>(bound));
        }
      }
    }
  }
}

TEST(Clerk, WithBackupsWhatComesTooLateIsDroppedAndItsWorkerHears) {
  const RoundTasks tasks = tasks_with(backups(1));
  int dropped = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Round round = run(tasks, 4, seed);
    std::map<int, int> in_log;
    for (const auto& entry : round.log)
      if (entry.kind == Kind::kUpdate && !entry.effect.counts) ++in_log[entry.worker];
    for (const auto& [worker, count] : round.dropped) {
      EXPECT_EQ(count, in_log[worker]);
      dropped += count;
    }
  }
  EXPECT_GT(dropped, 0);
}

TEST(Clerk, AReplayGivesTheSameOrderToAnyNumberOfWorkers) {
  for (const Asynchronous& rule : rules()) {
    const RoundTasks tasks = tasks_with(rule);
    for (const int recorders : {1, 4}) {
      for (unsigned seed = 0; seed < 10; ++seed) {
        const Round recorded = run(tasks, recorders, seed);
        for (int workers = 1; workers <= 5; ++workers) {
          SCOPED_TRACE(testing::Message() << rule.staleness << " " << rule.backups << " of "
                                          << workers << " workers, seed " << seed);
          const Round again = run(tasks, workers, 1000 + seed, &recorded.order);
          expect_sound(tasks, workers, again);
          EXPECT_EQ(again.order, recorded.order);
        }
      }
    }
  }
}

// Whatever order a file has: if it fits, nobody waits for ever.
TEST(Clerk, AReplayOfAnyOrderThatFitsEnds) {
  const RoundTasks tasks = tasks_with(stale(Asynchronous::kUnbounded));
  std::mt19937 random(7);
  for (int turn = 0; turn < 200; ++turn) {
    RoundOrder order{tasks.steps(), {}};
    std::vector<std::int64_t> all;
    for (std::int64_t task = 0; task < tasks.count(); ++task)
      if (tasks.samples(task) > 0) all.push_back(task);
    std::shuffle(all.begin(), all.end(), random);
    for (const std::int64_t number : all) {
      const Task task = tasks.task(number);
      const auto before = static_cast<std::int64_t>(order.updates.size());
      order.updates.push_back({tasks.steps().first + task.step, task.shard,
                               static_cast<std::int64_t>(random() % (before + 1))});
    }
    ASSERT_EQ(tasks.misfit(order), "");
    for (int workers = 1; workers <= 5; ++workers) {
      const Round again = run(tasks, workers, static_cast<unsigned>(turn), &order);
      expect_sound(tasks, workers, again);
      EXPECT_EQ(again.order, order);
    }
  }
}

TEST(Clerk, AWorkerAloneSeesAllUpdatesBefore) {
  const RoundTasks tasks = tasks_with(stale(Asynchronous::kUnbounded));
  std::int64_t number = 0;
  for (const OrderedUpdate& update : run(tasks, 1, 1).order.updates)
    EXPECT_EQ(update.seen, number++);
}

TEST(Clerk, AnUpdateHasThePartOfTheLearningRateThatItsSamplesAre) {
  const RoundTasks tasks = tasks_with(stale(0));
  std::vector<double> rates;
  for (const auto& entry : run(tasks, 1, 1).log)
    if (entry.kind == Kind::kUpdate && tasks.task(entry.task).step == kSteps - 1)
      rates.push_back(entry.effect.rate);
  EXPECT_THAT(rates, ElementsAre(8.0 / 27, 8.0 / 27, 8.0 / 27, 3.0 / 27));
}

}  // namespace
}  // namespace lockstep::plan::clerk
