// A job goes on with other workers between two steps, without a checkpoint, and with the bits that it would have had.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/step.h>

#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "tests/support/workers.h"
#include "tests/torch/folder.h"
#include "tests/torch/loops.h"
#include "tests/torch/own_process.h"
#include "torch/replica/model.h"

namespace lockstep::testing::loops {
namespace {

// One membership of the job, as one worker sees it.
struct Period {
  std::string folder;  // where its workers meet
  int rank = 0;
  int size = 0;
  std::int64_t until = 0;  // step
};

// A process takes half a minute to start under a sanitizer, beside other work.
constexpr std::chrono::seconds kStart{120};

std::unique_ptr<World> join_there(const Period& period, const std::string& engine) {
  FolderBootstrap bootstrap(period.folder, period.rank, period.size);
  CommOptions options{.timeout = kStart};
  if (engine == kTcpHosts) options.host = "host" + std::to_string(period.rank / 2);
  return std::make_unique<World>(World::over(connect(engine_called(engine), bootstrap, options)));
}

// Through all its periods. `ended` is called after each.
std::string live(const std::vector<Period>& periods, const std::string& engine,
                 const std::function<void(std::size_t)>& ended = {}) {
  auto world = join_there(periods.front(), engine);
  Gan gan(*world);
  std::string hash;
  for (std::size_t i = 0; i < periods.size(); ++i) {
    if (i > 0) {
      auto next = join_there(periods[i], engine);
      gan.job.rebind(*next);
      world = std::move(next);
    }
    hash = gan.run(periods[i].until);
    EXPECT_TRUE(gan.generator.identical());
    EXPECT_EQ(gan.job.step(), periods[i].until);
    if (ended) ended(i);
  }
  return hash;
}

std::string make_folder(const std::string& in, const std::string& name) {
  const std::string path = in + "/" + name;
  EXPECT_TRUE(base::make_directories(path));
  return path;
}

// 2 workers, then 3, then 1: the one that came last. It may be any of the three.
struct Story {
  std::vector<Period> first, second, third;
};
Story story(const std::string& folder, int rank_of_third) {
  const std::string two = make_folder(folder, "two");
  const std::string three = make_folder(folder, "three");
  const std::string one = make_folder(folder, "one");
  const int a = rank_of_third == 0 ? 1 : 0;
  const int b = rank_of_third == 2 ? 1 : 2;
  return {{{two, 0, 2, 3}, {three, a, 3, 5}},
          {{two, 1, 2, 3}, {three, b, 3, 5}},
          {{three, rank_of_third, 3, 5}, {one, 0, 1, kSteps}}};
}

class Rebind : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Third, Rebind, ::testing::Values(0, 2),
                         [](const auto& rank) { return "comes_as_" + std::to_string(rank.param); });

TEST_P(Rebind, ThreadsGoFromTwoToThreeToOneWithOneHash) {
  const std::string expected = gan_alone();  // before others seed LibTorch's generator
  std::vector<std::string> engines = cpu_engines();
  engines.emplace_back(kTcpHosts);
  for (const std::string& engine : engines) {
    SCOPED_TRACE(engine);
    const Folder folder;
    const Story workers = story(folder.path(), GetParam());
    std::promise<void> two_are_done;
    auto first = std::async(std::launch::async, [&] {
      return live(workers.first, engine, [&](std::size_t period) {
        if (period == 0) two_are_done.set_value();
      });
    });
    auto second = std::async(std::launch::async, [&] { return live(workers.second, engine); });
    two_are_done.get_future().wait();
    auto third = std::async(std::launch::async, [&] { return live(workers.third, engine); });
    EXPECT_EQ(first.get(), second.get());
    EXPECT_EQ(third.get(), expected);
  }
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A worker of the test below, as a process of its own.
TEST(RebindProcess, DISABLED_Lives) {
  const std::string folder = variable("REBIND_FOLDER");
  const int third = std::stoi(variable("REBIND_THIRD"));
  const Story workers = story(folder, third);
  const std::string who = variable("REBIND_WHO");
  const auto& mine = who == "first"    ? workers.first
                     : who == "second" ? workers.second
                                       : workers.third;
  const std::string hash = live(mine, "shm", [&](std::size_t period) {
    if (who == "first" && period == 0) std::ofstream(folder + "/two are done") << "yes";
  });
  std::ofstream(folder + "/" + who + ".hash") << hash;
}

TEST_P(Rebind, ProcessesGoFromTwoToThreeToOneWithOneHash) {
  const Folder folder;
  const auto run = [&](const std::string& who) {
    return std::async(std::launch::async, [&, who] {
      return passes_alone("RebindProcess.DISABLED_Lives",
                          thread_variables(1) + " REBIND_FOLDER='" + folder.path() +
                              "' REBIND_THIRD=" + std::to_string(GetParam()) + " REBIND_WHO=" + who,
                          folder / (who + ".out"));
    });
  };
  auto first = run("first");
  auto second = run("second");
  const Deadline deadline = Deadline::after(std::chrono::seconds(300));
  while (contents(folder / "two are done").empty() && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  auto third = run("third");
  EXPECT_TRUE(first.get()) << contents(folder / "first.out");
  EXPECT_TRUE(second.get()) << contents(folder / "second.out");
  EXPECT_TRUE(third.get()) << contents(folder / "third.out");
  EXPECT_EQ(contents(folder / "third.hash"), gan_alone());
}

TEST(Rebinding, IsRefusedInTheMiddleOfALoop) {
  World alone = World::over(connect_alone());
  World other = World::over(connect_alone());
  Gan gan(alone);
  for (const GlobalBatch& batch : gan.job.batches(data_of("mlp"), {.steps = 2})) {
    gan.d_step(batch);
    EXPECT_THROW(gan.job.rebind(other), BadInput);
    break;
  }
}

// The last byte of a tensor whose bytes are no whole words, one bit of it.
TEST(StateOnItsWay, ABitThatHasChangedIsNoticedByAll) {
  const auto tensors_of = [](bool changed) {
    std::vector<torch::Tensor> all = {torch::ones({1000}), torch::arange(13, torch::kUInt8)};
    if (changed) all[1].data_ptr<std::uint8_t>()[12] ^= 1;
    return all;
  };
  run_all({.size = 3}, [&](Comm& comm) { replica::check_arrived(comm, 1, tensors_of(false)); });
  const auto outcomes = run_workers({.size = 3}, [&](Comm& comm) {
    replica::check_arrived(comm, 1, tensors_of(comm.rank() == 2));
  });
  for (const testing::Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch);
    EXPECT_THAT(outcome.text,
                ::testing::HasSubstr("the state of rank 1 has changed on its way to rank 2"));
  }
}

}  // namespace
}  // namespace lockstep::testing::loops
