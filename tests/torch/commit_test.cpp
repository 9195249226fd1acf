// The order in which a step is committed, seen from another process: whatever instruction a worker is stopped after, the
// memory of the host holds what is needed to repeat the step or to finish it (src/torch/step/commit_page.h).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <lockstep/trainer.h>
#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "tests/support/stepper.h"
#include "tests/support/workers.h"
#include "tests/torch/folder.h"
#include "tests/torch/loops.h"
#include "tests/torch/own_process.h"
#include "torch/replica/replicated.h"
#include "torch/step/commit_page.h"

namespace lockstep::testing::loops {
namespace {

constexpr std::int64_t kStopped = 2;  // the step that is looked at

std::string variable_of(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Memory of another process.
class Elsewhere {
 public:
  explicit Elsewhere(pid_t process) : process_(process) {}

  template <typename T>
  std::vector<T> read(std::uint64_t address, std::size_t count) const {
    std::vector<T> values(count);
    iovec here{values.data(), count * sizeof(T)};
    iovec there{reinterpret_cast<void*>(address), count * sizeof(T)};
    if (::process_vm_readv(process_, &here, 1, &there, 1, 0) !=
        static_cast<ssize_t>(count * sizeof(T)))
      return {};
    return values;
  }

  // Where its commit page is: a mapping that begins with the page's magic number. Zero: nowhere.
  std::uint64_t find_page() const {
    std::ifstream maps("/proc/" + std::to_string(process_) + "/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("rw-s") == std::string::npos) continue;
      const std::uint64_t start = std::stoull(line, nullptr, 16);
      const auto word = read<std::uint64_t>(start, 1);
      if (!word.empty() && word[0] == steps::CommitHead::kMagic) return start;
    }
    return 0;
  }

 private:
  pid_t process_;
};

// A stretch of a worker's memory, as it told.
struct Stretch {
  std::uint64_t address = 0;
  std::size_t bytes = 0;
};

// A worker: trains, and stops itself when the last backward of a step has ended and the numbers of the one before have
// come; that is the last that a program sees before the update.
TEST(CommitProcess, DISABLED_Trains) {
  const std::string folder = variable_of("COMMIT_FOLDER");
  const int rank = std::stoi(variable_of("COMMIT_RANK"));
  FolderBootstrap bootstrap(folder, rank, 2);
  World world = World::over(connect("shm", bootstrap, {.timeout = std::chrono::seconds(120)}));
  auto net = seeded<Noisy>(kSeed, 10, kClasses);
  auto model = data_parallel(net, world);
  auto optimizer = std::make_shared<optim::AdamW>(model, optim::AdamWOptions{.lr = 1e-2});
  optimizer->set_clip_norm(0.1);
  TrainerParts parts{model, net.ptr(), optimizer, data_of("mlp")};
  parts.loss = [&](const Batch& batch) {
    return torch::cross_entropy_loss(net(batch.data), batch.target);
  };
  TrainerHooks hooks;
  hooks.on_step = [&](const StepRecord& record) {
    if (record.step != kStopped - 1 || rank != 1) return;
    {
      std::ofstream said(folder + "/stopped.part");
      said << ::getpid() << "\n";
      const auto& memory = replica::inside(model);
      const auto say = [&](const replica::FlatMemory& of) {
        said << reinterpret_cast<std::uint64_t>(of.data()) << " " << of.bytes() << "\n";
      };
      say(memory.parameters());
      for (int bank = 0; bank < memory.banks().count(); ++bank)
        say(memory.banks().at(bank).memory());
    }
    std::rename((folder + "/stopped.part").c_str(), (folder + "/stopped").c_str());
    ::raise(SIGSTOP);
  };
  TrainerOptions options{.steps = 4, .global_batch = 16, .shards = 8, .seed = kSeed};
  options.check_divergence = variable_of("COMMIT_CHECKED") == "yes";
  std::ofstream(folder + "/hash" + std::to_string(rank))
      << Trainer(world, parts, options, hooks).run().weights_sha256;
}

// What is there after an instruction, against the rules.
class Rules {
 public:
  Rules(const Elsewhere& worker, std::uint64_t page, const std::vector<Stretch>& told)
      : worker_(worker),
        page_(page),
        weights_(told.front()),
        banks_(told.begin() + 1, told.end()),
        bytes_(worker.read<std::byte>(page, sizeof(steps::CommitHead))),
        head_(*reinterpret_cast<const steps::CommitHead*>(bytes_.data())),
        layout_(head_),
        weights_before_(worker.read<std::byte>(weights_.address, weights_.bytes)),
        gradients_before_(gradients()),
        committed_before_(word(offsetof(steps::CommitHead, commit))[0]) {}

  bool committed() const { return committed_; }
  bool saw_intent() const { return saw_intent_; }

  // The first rule that does not hold; empty: all do.
  std::string broken() {
    const auto commits = word(offsetof(steps::CommitHead, commit));
    if (commits.empty()) return "the worker has ended, and its memory with it";
    const std::uint64_t commit = commits[0];
    committed_ = commit != committed_before_;
    const auto small = word(layout_.small[1 - (committed_before_ & 1)], head_.workers);
    const std::uint64_t next = small[1];
    const bool has_small = small[0] == small[1] && (next >> 24) == kStopped + 1;
    const std::uint64_t copy = 1 - (committed_before_ & 1);
    const auto intents = std::vector<std::uint64_t>{word(layout_.intent_of(head_, 0, copy))[0],
                                                    word(layout_.intent_of(head_, 1, copy))[0]};
    const bool intends = has_small && (intents[0] == next || intents[1] == next);
    saw_intent_ = saw_intent_ || intends;
    const auto marks = word(layout_.marks, head_.marks);
    const bool all_marked =
        std::count(marks.begin(), marks.end(), next) == static_cast<std::ptrdiff_t>(head_.marks);
    const bool wrote = worker_.read<std::byte>(weights_.address, weights_.bytes) != weights_before_;
    if (wrote && !has_small) return "a weight was written before the small values were there";
    if (wrote && !intends) return "a weight was written before there was an intent";
    if (intends && std::count(marks.begin(), marks.end(), next) > 0 && !wrote)
      return "a piece is marked and nothing was written";
    if (committed_ && commit != next) return "the commit word is of another phase";
    if (committed_ && !all_marked) return "the commit word has moved before all pieces were marked";
    if (!committed_ && gradients() != gradients_before_)
      return "gradients have changed before the commit";
    return {};
  }

 private:
  std::vector<std::uint64_t> word(std::size_t offset, std::size_t count = 1) const {
    return worker_.read<std::uint64_t>(page_ + offset, count);
  }
  std::vector<std::vector<std::byte>> gradients() const {
    std::vector<std::vector<std::byte>> all;
    for (const Stretch& bank : banks_)
      all.push_back(worker_.read<std::byte>(bank.address, bank.bytes));
    return all;
  }

  const Elsewhere& worker_;
  std::uint64_t page_;
  Stretch weights_;
  std::vector<Stretch> banks_;
  std::vector<std::byte> bytes_;
  const steps::CommitHead& head_;
  steps::CommitLayout layout_;
  std::vector<std::byte> weights_before_;
  std::vector<std::vector<std::byte>> gradients_before_;
  std::uint64_t committed_before_;
  bool committed_ = false;
  bool saw_intent_ = false;
};

// Steps through it, until it has committed. Where an atomic operation is a loop of instructions it may never get there.
void expect_rules_hold(const std::string& folder) {
  std::ifstream told(folder + "/stopped");
  pid_t process = 0;
  told >> process;
  std::vector<Stretch> stretches;
  for (Stretch next; told >> next.address >> next.bytes;) stretches.push_back(next);
  ASSERT_GE(stretches.size(), 2U);
  Stepper stepper(process);
  ::kill(process, SIGCONT);  // it stays where it is as long as it is held, and no longer
  if (!stepper.held()) GTEST_SKIP() << "nobody may trace another process here";
  const Elsewhere worker(process);
  const std::uint64_t page = worker.find_page();
  ASSERT_NE(page, 0U) << "the commit page is not found from outside";
  Rules rules(worker, page, stretches);
  constexpr int kMostSteps = 2'000'000;
  int steps = 0;
  for (; steps < kMostSteps && !rules.committed() && stepper.held(); ++steps) {
    stepper.step();
    const std::string broken = rules.broken();
    ASSERT_EQ(broken, "") << "after " << steps << " instructions";
  }
  if (steps == kMostSteps)
    GTEST_SKIP() << "this processor does not get through its atomic operations in single steps";
  EXPECT_TRUE(rules.committed()) << steps << " instructions";
  EXPECT_TRUE(rules.saw_intent());
  ::testing::Test::RecordProperty("instructions", steps);
}

class Commit : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Divergence, Commit, ::testing::Values("yes", "no"),
                         [](const auto& checked) { return "checked_" + checked.param; });

TEST_P(Commit, TheHostHoldsWhatAStepNeedsAfterAnyInstruction) {
  const Folder folder;
  const auto run = [&](int rank) {
    return std::async(std::launch::async, [&, rank] {
      return passes_alone("CommitProcess.DISABLED_Trains",
                          thread_variables(1) + " COMMIT_FOLDER='" + folder.path() +
                              "' COMMIT_CHECKED=" + GetParam() +
                              " COMMIT_RANK=" + std::to_string(rank),
                          folder / ("out" + std::to_string(rank)));
    });
  };
  auto first = run(0);
  auto second = run(1);
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  while (contents(folder / "stopped").empty() && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  expect_rules_hold(folder.path());
  EXPECT_TRUE(first.get()) << contents(folder / "out0");
  EXPECT_TRUE(second.get()) << contents(folder / "out1");
  EXPECT_EQ(contents(folder / "hash0"), contents(folder / "hash1"));
  EXPECT_NE(contents(folder / "hash0"), "");
}

}  // namespace
}  // namespace lockstep::testing::loops
