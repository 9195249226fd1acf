// The arithmetic of a job, in every thread that computes for it.
#include "torch/step/arithmetic.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>
#include <lockstep/trainer.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/denormals.h"
#include "tests/torch/folder.h"
#include "tests/torch/nets.h"
#include "tests/torch/own_process.h"
#include "torch/device/instructions.h"

namespace lockstep::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr float kLeast = std::numeric_limits<float>::min();

// By bits: a comparison of numbers would flush too.
std::int64_t zeros(const torch::Tensor& tensor) {
  return (tensor.contiguous().view(torch::kInt32) == 0).sum().item<std::int64_t>();
}

// All elements are denormal, or all zero.
void expect_flushed(const torch::Tensor& tensor, bool flushed) {
  EXPECT_EQ(zeros(tensor), flushed ? tensor.numel() : 0);
}

void expect_in_parallel(bool flushed) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int> right{0};
  at::parallel_for(0, 2, 1, [&](std::int64_t, std::int64_t) {
    if (base::flushes_denormals() == flushed) ++right;
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 2U);
  EXPECT_EQ(right, 2);
  expect_flushed(torch::full({1 << 20}, kLeast) * 0.5, flushed);
}

// Columns for every thread that OpenBLAS has; it made them before main.
void expect_in_blas(bool flushed) {
  const auto tiny = torch::full({512, 512}, 1e-22F);
  expect_flushed(torch::mm(tiny, torch::full({512, 512}, 1e-20F)), flushed);
}

void expect_in_backward(bool flushed) {
  bool in_hook = !flushed;
  auto x = torch::full({1 << 17}, 1.0F).requires_grad_();
  x.register_hook([&](const torch::Tensor&) { in_hook = base::flushes_denormals(); });
  (x * 0.5).backward(torch::full({1 << 17}, kLeast));
  EXPECT_EQ(in_hook, flushed);
  expect_flushed(x.grad(), flushed);
}

void expect_everywhere(bool flushed) {
  expect_flushed(torch::full({5}, kLeast) * 0.5, flushed);
  expect_in_parallel(flushed);
  expect_in_blas(flushed);
  expect_in_backward(flushed);
  std::thread([&] { expect_in_backward(flushed); }).join();
}

// These three change the whole process: DenormalsAreFlushedOrKept…, below, runs each in one of its own, and fails with it.
TEST(ArithmeticAlone, DISABLED_DenormalsAreFlushedEverywhere) {
  steps::set_arithmetic({.threads = 2, .flush_denormals = true});
  expect_everywhere(true);
}

// As after a library linked with -ffast-math: OpenBLAS's threads were there before.
TEST(ArithmeticAlone, DISABLED_DenormalsAreFlushedEverywhereThoughTheMainThreadDidAlready) {
  base::set_flush_denormals(true);
  steps::set_arithmetic({.threads = 2, .flush_denormals = true});
  expect_everywhere(true);
}

TEST(ArithmeticAlone, DISABLED_DenormalsAreKeptEverywhere) {
  steps::set_arithmetic({.threads = 2, .flush_denormals = false});
  expect_everywhere(false);
}

TEST(OwnProcess, ATestThatIsNotThereHasNotPassed) {
  const Folder folder;
  EXPECT_FALSE(passes_alone("OwnProcess.NoSuchTest", "", folder / "output"));
  EXPECT_THAT(contents(folder / "output"), HasSubstr("0 tests"));
}

TEST(JobArithmetic, DenormalsAreFlushedOrKeptInEveryThreadThatComputes) {
  if (!base::set_flush_denormals(true)) GTEST_SKIP() << "this processor cannot flush denormals";
  base::set_flush_denormals(false);
  const Folder folder;
  const std::string output = folder / "output";
  for (const std::string test :
       {"FlushedEverywhere", "FlushedEverywhereThoughTheMainThreadDidAlready", "KeptEverywhere"}) {
    EXPECT_TRUE(
        passes_alone("ArithmeticAlone.DISABLED_DenormalsAre" + test, thread_variables(2), output))
        << contents(output);
  }
}

// Of the environment, as long as it lives; then what it was before.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value, 1);
  }
  ~Variable() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(JobArithmetic, TheEnvironmentOfTheLibrariesIsPartOfIt) {
  const std::string before = steps::arithmetic_environment();
  std::string with_more;
  {
    // The values say nothing of what a variable is.
    const Variable mode("ONEDNN_LOCKSTEP_TEST", "NUM_THREADS_VERBOSE");
    const Variable domain("MKL_DOMAIN_NUM_THREADS", "MKL_BLAS=2");
    const Variable blocks("OPENBLAS_BLOCK_FACTOR", "2");
    const Variable verbose("DNNL_LOCKSTEP_VERBOSE", "0");
    const Variable threads("MKL_NUM_THREADS", "1");
    with_more = steps::arithmetic_environment();
  }
  EXPECT_THAT(with_more, HasSubstr("ONEDNN_LOCKSTEP_TEST=NUM_THREADS_VERBOSE"));
  EXPECT_THAT(with_more, HasSubstr("MKL_DOMAIN_NUM_THREADS=MKL_BLAS=2"));
  EXPECT_THAT(with_more, HasSubstr("OPENBLAS_BLOCK_FACTOR=2"));
  EXPECT_THAT(with_more, Not(HasSubstr("DNNL_LOCKSTEP_VERBOSE")));
  EXPECT_THAT(with_more, Not(HasSubstr("MKL_NUM_THREADS")));
  EXPECT_EQ(steps::arithmetic_environment(), before);
}

TEST(JobArithmetic, OnAGpuTheEnvironmentOfItsLibrariesIsPartOfItToo) {
  const Variable workspace("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
  const Variable tf32("NVIDIA_TF32_OVERRIDE", "0");
  const Variable log("CUBLAS_LOGINFO_DBG", "1");
  const std::string on_gpu = steps::arithmetic_environment({DeviceKind::kCuda, 0});
  EXPECT_THAT(on_gpu, HasSubstr("CUBLAS_WORKSPACE_CONFIG=:4096:8"));
  EXPECT_THAT(on_gpu, HasSubstr("NVIDIA_TF32_OVERRIDE=0"));
  EXPECT_THAT(on_gpu, Not(HasSubstr("LOGINFO")));
  EXPECT_THAT(steps::arithmetic_environment(), Not(HasSubstr("CUBLAS")));
}

// What oneDNN may use on this processor is for it to say; that a name of it is there is not.
TEST(JobArithmetic, TheInstructionsOfItsLibrariesArePartOfIt) {
  const std::string said = steps::arithmetic_in_use().at("instructions");
  EXPECT_THAT(said, StartsWith("ATen "));
  EXPECT_THAT(said, Not(HasSubstr("unknown")));
  if (device::loaded_function<void()>("openblas_get_corename") != nullptr) {
    EXPECT_THAT(said, HasSubstr(", OpenBLAS "));
  }
  if (device::loaded_function<void()>("dnnl_get_effective_cpu_isa") != nullptr) {
    EXPECT_THAT(said, HasSubstr(", oneDNN "));
  }
  EXPECT_EQ(device::aten_instructions_in("- NNPACK\n  - CPU capability usage: AVX2\n  - x"),
            "AVX2");
  EXPECT_EQ(device::aten_instructions_in("CPU capability usage: NO AVX"), "NO AVX");
  EXPECT_EQ(device::aten_instructions_in("- NNPACK"), "unknown");
}

// A worker of a world of two: the test below starts both.
TEST(ArithmeticAlone, DISABLED_AWorkerFindsThatTheOtherHasOtherInstructions) {
  World world = join();
  try {
    auto model = data_parallel(TwoLayers(), world);
    FAIL() << "workers with other instructions train together";
  } catch (const Mismatch& mismatch) {
    EXPECT_THAT(
        mismatch.what(),
        ContainsRegex("different instructions, .*: instructions is ATen [A-Z0-9 ]+.* on rank "
                      "[01] and ATen [A-Z0-9 ]+.* on rank [01]; .*ATEN_CPU_CAPABILITY"));
    EXPECT_EQ(mismatch.ranks(), std::vector<int>{1});
  }
}

TEST(DropIn, WorkersWhoseLibrariesUseOtherInstructionsAreAMismatch) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "LibTorch has one set of instructions here";
#endif
  const Folder folder;
  const auto worker = [&](const std::string& variables, const std::string& output) {
    return command_alone("ArithmeticAlone.DISABLED_AWorkerFindsThatTheOtherHasOtherInstructions",
                         variables, folder / output);
  };
  std::ofstream(folder / "both.sh") << "if [ $RANK = 0 ]; then " << worker("", "0") << "; else "
                                    << worker("ATEN_CPU_CAPABILITY=default", "1") << "; fi\n";
  const std::string command =
      "'" LOCKSTEP_COMMAND "' run -q -n 2 -- /bin/sh '" + (folder / "both.sh") + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_TRUE(one_passed(folder / "0")) << contents(folder / "0");
  EXPECT_TRUE(one_passed(folder / "1")) << contents(folder / "1");
}

TEST(JobArithmetic, TheDeviceIsPartOfIt) {
  const auto properties = steps::arithmetic_in_use();
  EXPECT_EQ(properties.at("device"), "cpu");
  EXPECT_EQ(properties.count("tf32"), 0U);
}

// Undoes what set_arithmetic() does to the whole process.
class DeterministicScope {
 public:
  explicit DeterministicScope(bool on) { set(on); }
  ~DeterministicScope() { set(false); }
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  static void set(bool on) { at::globalContext().setDeterministicAlgorithms(on, false); }
};

// Trains with an operator that is not deterministic: where indices meet twice, the last one to write wins.
TrainingResult train_unpooling(World& world) {
  auto net = seeded<TwoLayers>(3, 16, 16, 16);
  auto model = data_parallel(net, world);
  TrainerParts parts{model, net.ptr(), std::make_shared<optim::SGD>(model, optim::SGDOptions{}),
                     tensor_dataset(samples(1, {8, 16}), torch::zeros({8}))};
  parts.loss = [net](const Batch& batch) mutable {
    const auto [values, indices] =
        torch::max_pool2d_with_indices(net->forward(batch.data).view({-1, 1, 4, 4}), {2, 2});
    return torch::max_unpool2d(values, indices, {4, 4}).pow(2).mean();
  };
  TrainerOptions options;
  options.steps = 2;
  options.global_batch = 4;
  options.shards = 2;
  Trainer trainer(world, parts, options);
  return trainer.run();
}

TEST(JobArithmetic, AnOperatorThatIsNotDeterministicIsRefusedByName) {
  const DeterministicScope deterministic(true);
  for (const Outcome& outcome :
       outcomes_in_world(2, [](World& world) { train_unpooling(world); })) {
    EXPECT_EQ(outcome.kind, ErrorKind::kBadInput);
    EXPECT_THAT(outcome.text, HasSubstr("operator max_unpooling2d"));
    EXPECT_THAT(outcome.text, HasSubstr("--deterministic off"));
    EXPECT_THAT(outcome.text, HasSubstr("setDeterministicAlgorithms(false"));
    EXPECT_EQ(outcome.text.find('\n'), std::string::npos);
  }
}

TEST(JobArithmetic, WithoutTheSwitchSuchAnOperatorRuns) {
  const DeterministicScope deterministic(false);
  in_world(2, [](World& world) { EXPECT_EQ(train_unpooling(world).steps, 2); });
}

// A job of the library's, with checkpoints; how its worker ended.
Outcome train_with_checkpoints(const std::string& directory, std::int64_t steps,
                               const std::map<std::string, std::string>& job = {}) {
  return outcomes_in_world(1,
                           [&](World& world) {
                             auto net = seeded<TwoLayers>(3);
                             auto model = data_parallel(net, world);
                             TrainerParts parts{
                                 model, net.ptr(),
                                 std::make_shared<optim::SGD>(model, optim::SGDOptions{}),
                                 tensor_dataset(samples(1, {8, 8}), torch::zeros({8}))};
                             parts.loss = [net](const Batch& batch) mutable {
                               return net->forward(batch.data).pow(2).mean();
                             };
                             TrainerOptions options;
                             options.steps = steps;
                             options.global_batch = 4;
                             options.shards = 2;
                             options.checkpoint_directory = directory;
                             options.existing_checkpoint = ExistingCheckpoint::kResume;
                             options.job = job;
                             EXPECT_EQ(Trainer(world, parts, options).run().steps, steps);
                           })
      .front();
}

TEST(JobArithmetic, OfATrainerIsPartOfItsJob) {
  const Folder folder;
  ASSERT_EQ(train_with_checkpoints(folder.path(), 1).text, "");
  const auto refused = [&](const std::string& property) {
    const Outcome outcome = train_with_checkpoints(folder.path(), 2);
    EXPECT_EQ(outcome.kind, ErrorKind::kMismatch) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("was made with " + property + " = "));
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(threads + 1);
  refused("threads");
  at::set_num_threads(threads);
  if (steps::has_onednn()) {
    const bool onednn = at::globalContext().userEnabledMkldnn();
    steps::use_onednn(!onednn);
    refused("onednn");
    steps::use_onednn(onednn);
  }
  {
    const DeterministicScope deterministic(!at::globalContext().deterministicAlgorithms());
    refused("deterministic");
  }
  {
    const Variable variable("ONEDNN_LOCKSTEP_TEST", "1");
    refused("environment");
  }
  if (base::set_flush_denormals(true)) refused("flush_denormal");
  base::set_flush_denormals(false);
  EXPECT_EQ(train_with_checkpoints(folder.path(), 2).text, "");
}

TEST(JobArithmetic, APropertyThatACheckpointDoesNotHaveIsNamed) {
  const Folder folder;
  ASSERT_EQ(train_with_checkpoints(folder.path(), 1).text, "");
  const Outcome outcome = train_with_checkpoints(folder.path(), 2, {{"colour", "blue"}});
  EXPECT_EQ(outcome.kind, ErrorKind::kMismatch);
  EXPECT_THAT(outcome.text, HasSubstr("does not say colour, and this job has blue"));
  EXPECT_THAT(outcome.text, HasSubstr("an earlier version of Lockstep that did not record it"));
}

TEST(JobArithmetic, OtherErrorsOfLibTorchPassAsTheyAre) {
  EXPECT_THROW(steps::in_plain_words([] { torch::ones({2}) + torch::ones({3}); }), c10::Error);
}

}  // namespace
}  // namespace lockstep::testing
