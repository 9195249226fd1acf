#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "bench/allreduce.h"
#include "bench/allreduce/measure.h"
#include "bench/measure/cores.h"
#include "bench/step.h"
#include "bench/step_cuda.h"

namespace lockstep::bench {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using testing::SizeIs;

template <typename Function>
std::string refusal(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string refused_allreduce(const std::vector<std::string>& words) {
  return refusal([&] { parse_allreduce_arguments(words); });
}

TEST(BenchSizesTest, UnitsAreBinaryUnlessWrittenAsThousands) {
  EXPECT_EQ(parse_size("1KiB"), 1024U);
  EXPECT_EQ(parse_size("64MiB"), std::size_t{64} << 20);
  EXPECT_EQ(parse_size("1GiB"), std::size_t{1} << 30);
  EXPECT_EQ(parse_size("4"), 4U);
  EXPECT_EQ(parse_size("100kB"), 100'000U);
  EXPECT_EQ(spoken_size(1024), "1 KiB");
  EXPECT_EQ(spoken_size(std::size_t{256} << 20), "256 MiB");
  EXPECT_EQ(spoken_size(1028), "1028 B");
}

TEST(BenchSizesTest, WhatIsNoSizeOfFloatsIsRefused) {
  for (const char* text : {"", "KiB", "-4", "1kib", "1.5MiB", "0", "99999999999999999999", "65GiB"})
    EXPECT_THAT(refusal([&] { parse_size(text); }), HasSubstr("--sizes")) << text;
  EXPECT_THAT(refusal([] { parse_size("1021"); }), HasSubstr("not a multiple of 4 bytes"));
}

TEST(BenchArgumentsTest, DefaultsArePowersOfTwoAndEverythingThatIsThere) {
  const auto arguments = parse_allreduce_arguments({});
  EXPECT_THAT(arguments.sizes, SizeIs(19));
  EXPECT_EQ(arguments.sizes.front(), 1024U);
  EXPECT_EQ(arguments.sizes.back(), std::size_t{256} << 20);
  EXPECT_GE(arguments.workers, 2);
  EXPECT_EQ(arguments.engines, std::nullopt);
  EXPECT_EQ(arguments.peers, std::nullopt);
}

TEST(BenchArgumentsTest, AllOptionsArrive) {
  const auto arguments = parse_allreduce_arguments(
      {"--workers", "3", "--sizes", "1MiB,1KiB,1MiB", "--engines", "shm", "--peers", "none",
       "--rounds", "2", "--seconds", "0.5", "--iterations", "7", "--json", "--plot", "x.svg"});
  EXPECT_EQ(arguments.workers, 3);
  EXPECT_THAT(arguments.sizes, ElementsAre(1024U, std::size_t{1} << 20));
  EXPECT_THAT(*arguments.engines, ElementsAre("shm"));
  EXPECT_THAT(*arguments.peers, IsEmpty());
  EXPECT_EQ(arguments.rounds, 2);
  EXPECT_EQ(arguments.seconds, 0.5);
  EXPECT_EQ(arguments.iterations, 7);
  EXPECT_TRUE(arguments.json);
  EXPECT_EQ(arguments.plot, "x.svg");
}

TEST(BenchArgumentsTest, WhatCannotWorkIsOneLineThatSaysWhatCan) {
  EXPECT_THAT(refused_allreduce({"--nope"}), HasSubstr("--nope"));
  EXPECT_THAT(refused_allreduce({"--workers", "0"}), HasSubstr("1 to 256"));
  EXPECT_THAT(refused_allreduce({"--rounds", "0"}), HasSubstr("--rounds"));
  EXPECT_THAT(refused_allreduce({"--seconds", "nan"}), HasSubstr("--seconds"));
  EXPECT_THAT(refused_allreduce({"--seconds", "1e999"}), HasSubstr("--seconds 1e999"));
  EXPECT_THAT(refused_allreduce({"--rounds", "5x"}), HasSubstr("--rounds 5x"));
  EXPECT_THAT(refused_allreduce({"--sizes", ","}), HasSubstr("--sizes"));
  EXPECT_THAT(refused_allreduce({"--plot", "/no/such/x.svg"}), HasSubstr("/no/such"));
  const auto field = [](const std::vector<std::string>& words) {
    return refusal([&] { allreduce_field(parse_allreduce_arguments(words), ""); });
  };
  EXPECT_THAT(field({"--engines", "ship"}), HasSubstr("choose from shm, tcp"));
  EXPECT_THAT(field({"--peers", "nccl"}), HasSubstr("choose from gloo, openmpi, mpich"));
}

TEST(BenchArgumentsTest, EveryDurationThatIsAcceptedFitsIntoTheLimitOfARun) {
  const auto steps = [](std::vector<std::string> words) {
    return longest_run(parse_step_arguments(words)).count();
  };
  const auto sums = [](std::vector<std::string> words) {
    return longest_run(parse_allreduce_arguments(words)).count();
  };
  EXPECT_GE(steps({"--seconds", "600"}), 600 + 2 * 600);
  EXPECT_GE(steps({"--device", "cuda", "--seconds", "600"}), 100 + 2 * 600);
  // Steps of several seconds, as large models have them on a CPU.
  EXPECT_GE(steps({"--iterations", "1000"}), 600 + 5'000);
  EXPECT_GE(steps({"--device", "cuda", "--iterations", "100000"}), 100'000);
  EXPECT_GE(sums({"--seconds", "600"}), 600 + 2 * 19 * 600);
  EXPECT_GE(sums({"-n", "2", "--sizes", "1KiB,1MiB", "--iterations", "100000"}), 600 + 20'000);
  EXPECT_GE(sums({"-n", "2", "--sizes", "64GiB"}), 600 + 10 * 600);
  EXPECT_EQ(sums({"-n", "256", "--sizes", "32GiB,64GiB", "--iterations", "100000"}), 7 * 86'400);
  // Whoever hangs is not waited for much longer than that.
  EXPECT_LE(steps({"-n", "2"}), 700);
  EXPECT_EQ(steps({"--device", "cuda"}), 140);
  EXPECT_LE(sums({"-n", "2"}), 800);
}

TEST(BenchArgumentsTest, AStepHasAModelABatchAndAnOptimizer) {
  const auto arguments = parse_step_arguments({"--model", "cnn", "--batch", "8", "-n", "2"});
  EXPECT_EQ(arguments.model, "cnn");
  EXPECT_EQ(arguments.batch, 8);
  EXPECT_EQ(arguments.optimizer, "sgd-momentum");
  const auto refused = [](const std::vector<std::string>& words) {
    return refusal([&] { step_field(parse_step_arguments(words)); });
  };
  EXPECT_THAT(refused({"--model", "lstm"}), HasSubstr("choose from mlp, cnn, resnet18, gpt"));
  EXPECT_THAT(refused({"--optimizer", "lion"}), HasSubstr("sgd-momentum"));
  EXPECT_THAT(refused({"--batch", "0"}), HasSubstr("--batch 0"));
  EXPECT_THAT(refused({"--sizes", "1KiB"}), HasSubstr("unknown option --sizes"));
  EXPECT_THAT(refused({"--peers", "openmpi"}),
              HasSubstr("plain, plain-barrier, plain-zeroed, plain-flat, pytorch-ddp"));
}

TEST(BenchArgumentsTest, RowsAreWorkersAndThreads) {
  const auto arguments = parse_step_arguments({"--rows", "2x8,4x4,3"});
  EXPECT_THAT(arguments.rows, ElementsAre(WorkerRow{2, 8, 2}, WorkerRow{4, 4, 4},
                                          WorkerRow{3, threads_of_a_worker(3), 3}));
  EXPECT_EQ(arguments.workers, 2);
  EXPECT_EQ(of_row(arguments, arguments.rows[1]).threads, 4);
  EXPECT_THAT(parse_step_arguments({"-n", "2"}).rows,
              ElementsAre(WorkerRow{2, threads_of_a_worker(2), 2}));
  EXPECT_EQ(parse_step_arguments({"--rows", "1x2,4x1", "--shards", "8"}).rows[1].shards, 8);
  const auto refused = [](const std::vector<std::string>& words) {
    return refusal([&] { parse_step_arguments(words); });
  };
  for (const char* bad : {"2y8", "x8", "2x", "2x8x1", "2.5"})
    EXPECT_THAT(refused({"--rows", bad}), HasSubstr("as in 4x2")) << bad;
  EXPECT_THAT(refused({"--rows", "2x1,0x4"}), HasSubstr("--rows 0x4: give a number of workers"));
  EXPECT_THAT(refused({"--rows", "257x1"}), HasSubstr("from 1 to 256"));
  EXPECT_THAT(refused({"--rows", "2x0"}), HasSubstr("--rows 2x0: give a number of threads"));
  EXPECT_THAT(refused({"--rows", "2x1,2x1"}), HasSubstr("--rows 2x1: it is given twice"));
  EXPECT_THAT(refused({"--rows", ","}), HasSubstr("--rows: none given"));
  EXPECT_THAT(refused({"--rows", "2x1", "-n", "2"}), HasSubstr("--rows says how many"));
  EXPECT_THAT(refused({"--rows", "2x1", "--device", "cuda"}), HasSubstr("give --workers"));
  EXPECT_THAT(refused({"--rows", "2x1,4x1", "--shards", "3"}), HasSubstr("from 4, the workers"));
}

TEST(BenchArgumentsTest, AStepHasAsManyShardsAsWorkersOrMore) {
  EXPECT_EQ(parse_step_arguments({"-n", "3"}).shards, 3);
  EXPECT_EQ(parse_step_arguments({"-n", "2", "--shards", "8"}).shards, 8);
  const auto refused = [](const std::vector<std::string>& words) {
    return refusal([&] { step_field(parse_step_arguments(words)); });
  };
  EXPECT_THAT(refused({"-n", "4", "--shards", "3"}), HasSubstr("--shards 3: give a number from 4"));
  EXPECT_THAT(refused({"-n", "4", "--shards", "0"}), HasSubstr("--shards 0"));
  EXPECT_THAT(refused({"-n", "4", "--shards", "5000"}), HasSubstr("to 4096"));
  EXPECT_THAT(refused({"-n", "2", "--shards", "8", "--peers", "plain"}),
              HasSubstr("choose from plain-accumulate, plain-accumulate-flat"));
  EXPECT_THAT(refused({"-n", "2", "--shards", "2", "--peers", "plain-accumulate"}),
              HasSubstr("choose from plain, "));
}

std::vector<std::string> names_of(const Field& field) {
  std::vector<std::string> names;
  for (const Contender& one : field.contenders) names.push_back(one.name);
  return names;
}

TEST(BenchArgumentsTest, AFileForTheResultsIsLookedAtBeforeTheMeasuring) {
  EXPECT_EQ(parse_step_arguments({"--save", "x.json"}).save, "x.json");
  EXPECT_THAT(refused_allreduce({"--save", "/no/such/x.json"}),
              HasSubstr("--save /no/such/x.json"));
}

TEST(BenchCudaTest, DefaultsAreThoseOfTheModelOnTheDevice) {
  const auto cpu = parse_step_arguments({"--model", "gpt", "-n", "2"});
  EXPECT_EQ(cpu.device, "cpu");
  EXPECT_EQ(cpu.batch, 32);
  EXPECT_EQ(cpu.optimizer, "sgd-momentum");
  EXPECT_EQ(cpu.precision, "float32");
  EXPECT_EQ(cpu.gpt_size, "tiny");
  EXPECT_EQ(cpu.context, 128);
  const auto gpt = parse_step_arguments({"--device", "cuda", "--model", "gpt"});
  EXPECT_EQ(gpt.workers, 1);
  EXPECT_EQ(gpt.shards, 1);
  EXPECT_EQ(gpt.batch, 8);
  EXPECT_EQ(gpt.optimizer, "adamw");
  EXPECT_EQ(gpt.precision, "bf16");
  EXPECT_EQ(gpt.gpt_size, "gpt2");
  EXPECT_EQ(gpt.context, 1024);
  const auto resnet = parse_step_arguments({"--device", "cuda", "--model", "resnet18"});
  EXPECT_EQ(resnet.batch, 256);
  EXPECT_EQ(resnet.precision, "float32");
  EXPECT_EQ(parse_step_arguments({"--device", "cuda"}).batch, 128);
}

TEST(BenchCudaTest, WhatIsGivenIsTaken) {
  const auto arguments = parse_step_arguments(
      {"--device",    "cuda", "--model",      "gpt", "--gpt-size",     "small",
       "--context",   "64",   "--batch",      "3",   "--precision",    "float32",
       "--optimizer", "sgd",  "-n",           "2",   "--systems",      "trainer,pytorch-graph",
       "--seconds",   "1.5",  "--iterations", "7",   "--bucket-bytes", "1000000"});
  EXPECT_THAT(*arguments.systems, ElementsAre("trainer", "pytorch-graph"));
  EXPECT_EQ(arguments.shards, 2);
  EXPECT_THAT(step_job_words(arguments), ElementsAre("gpt", "3", "sgd", "1.5", "7", "cuda",
                                                     "float32", "small", "64", "1000000"));
}

TEST(BenchCudaTest, WhatCannotWorkIsOneLineThatSaysWhatCan) {
  const auto refused = [](const std::vector<std::string>& words) {
    return refusal([&] { cuda_field(parse_step_arguments(words), {}); });
  };
  EXPECT_THAT(refused({"--device", "tpu"}), HasSubstr("choose from cpu, cuda"));
  EXPECT_THAT(refused({"--device", "cuda", "--peers", "plain"}), HasSubstr("with --systems"));
  EXPECT_THAT(refused({"--device", "cuda", "--engines", "shm"}), HasSubstr("with --systems"));
  EXPECT_THAT(refused({"--systems", "plain"}), HasSubstr("--engines and --peers"));
  EXPECT_THAT(refused({"--precision", "bf16"}), HasSubstr("--device cuda only"));
  EXPECT_THAT(refused({"--precision", "fp8"}), HasSubstr("choose from float32, bf16, bf16-held"));
  EXPECT_THAT(refused({"--gpt-size", "gpt2"}), HasSubstr("only --model gpt"));
  EXPECT_THAT(refused({"--model", "gpt", "--gpt-size", "xl"}), HasSubstr("choose from tiny"));
  EXPECT_THAT(refused({"--model", "gpt", "--context", "0"}), HasSubstr("--context 0"));
  EXPECT_THAT(refused({"--bucket-bytes", "0"}), HasSubstr("--bucket-bytes 0"));
  EXPECT_THAT(refused({"--device", "cuda", "--shards", "8"}), HasSubstr("as many as workers, 1"));
  EXPECT_THAT(refused({"--device", "cuda", "--systems", "jax"}),
              HasSubstr("--systems jax: choose from plain, drop-in, "));
}

CudaHost whole_host() {
  return {"/x/lockstep-train", "", "python3", "/x/lockstep_bench_cuda.py", ""};
}

Field cuda_field_of(std::vector<std::string> words, const CudaHost& host) {
  words.insert(words.begin(), {"--device", "cuda"});
  return cuda_field(parse_step_arguments(words), host);
}

TEST(BenchCudaTest, AllSystemsTakePartOnOneGpu) {
  const Field field = cuda_field_of({"--model", "gpt"}, whole_host());
  EXPECT_THAT(names_of(field),
              ElementsAre("plain", "drop-in", "drop-in-forced", "trainer", "trainer-unchecked",
                          "trainer-deterministic", "pytorch", "pytorch-ddp", "pytorch-ddp-views",
                          "pytorch-graph", "pytorch-graph-deterministic"));
  EXPECT_THAT(field.left_out, IsEmpty());
  for (const Contender& one : field.contenders) {
    EXPECT_EQ(one.ours, !one.name.starts_with("pytorch"));
    EXPECT_THAT(one.variables, Contains(Pair("LOCKSTEP_DEVICE", "cuda")));
    EXPECT_EQ(one.name.ends_with("-deterministic"),
              std::ranges::count(
                  one.variables,
                  std::pair<std::string, std::string>{"CUBLAS_WORKSPACE_CONFIG", ":4096:8"}) == 1)
        << one.name;
    EXPECT_EQ(one.name == "drop-in-forced", std::ranges::count(one.command, "nccl") == 1)
        << one.name;
    EXPECT_THAT(one.command,
                Contains(one.ours ? "/x/lockstep-train" : "/x/lockstep_bench_cuda.py"));
    EXPECT_THAT(one.command, Contains("1024"));
  }
}

TEST(BenchCudaTest, WhoCannotRunHereIsLeftOutWithAReasonUnlessItIsOurs) {
  CudaHost host = whole_host();
  host.python_problem = "no PyTorch";
  const Field field = cuda_field_of({"--systems", "trainer,pytorch-graph"}, host);
  EXPECT_THAT(names_of(field), ElementsAre("trainer"));
  EXPECT_THAT(field.left_out, ElementsAre("pytorch-graph: no PyTorch"));
  host.program_problem = "this LibTorch has no CUDA";
  EXPECT_EQ(refusal([&] { cuda_field_of({}, host); }), "bench step: this LibTorch has no CUDA");
  host.python_problem.clear();
  EXPECT_THAT(names_of(cuda_field_of({"--systems", "pytorch"}, host)), ElementsAre("pytorch"));
}

TEST(BenchCudaTest, SeveralGpusGoWithoutWhatIsForOne) {
  const Field field = cuda_field_of({"-n", "2"}, whole_host());
  EXPECT_THAT(names_of(field),
              ElementsAre("plain", "drop-in", "trainer", "trainer-unchecked",
                          "trainer-deterministic", "pytorch", "pytorch-ddp", "pytorch-ddp-views"));
  EXPECT_THAT(field.left_out, SizeIs(3));
  EXPECT_THAT(field.contenders[1].command, Contains("nccl"));
}

TEST(BenchCudaTest, EveryBaseIsASystem) {
  for (const CudaSystem& system : cuda_systems()) {
    if (std::string(system.base).empty()) continue;
    ASSERT_NE(cuda_system(system.base), nullptr) << system.name;
    EXPECT_EQ(cuda_system(system.base)->deterministic, system.deterministic) << system.name;
  }
}

TEST(BenchArgumentsTest, OrdersAreComparedWhenAskedFor) {
  const auto field = [](std::vector<std::string> words) {
    words.insert(words.end(), {"--engines", "shm", "--peers", "none"});
    return names_of(allreduce_field(parse_allreduce_arguments(words), ""));
  };
  EXPECT_THAT(field({}), ElementsAre("lockstep-shm", "limit", "limit-dirty"));
  EXPECT_THAT(field({"--order"}), ElementsAre("lockstep-shm", "in-place-tree", "in-place-ranks",
                                              "limit", "limit-dirty"));
}

TEST(BenchCoresTest, WorkersGetTheirPartOfTheCoresOrShareThem) {
  EXPECT_THAT(cores_of(0, 2, {4, 5}), ElementsAre(4));
  EXPECT_THAT(cores_of(1, 2, {4, 5, 6, 7}), ElementsAre(6, 7));
  EXPECT_THAT(cores_of(1, 2, {0, 1, 2}), ElementsAre(1, 2));
  EXPECT_THAT(cores_of(3, 4, {0, 1}), ElementsAre(1));
}

TEST(BenchStatisticsTest, QuantilesLieBetweenSamplesInProportion) {
  EXPECT_EQ(quantile({7}, 0.99), 7);
  EXPECT_EQ(quantile({1, 2, 3, 4, 5}, 0.5), 3);
  EXPECT_EQ(quantile({1, 2}, 0.5), 1.5);
  EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.99), 9.9);
  const Summary summary = summarise({5, 1, 4, 2, 3});
  EXPECT_EQ(summary.samples, 5U);
  EXPECT_EQ(summary.p50, 3);
  EXPECT_EQ(summary.q1, 2);
  EXPECT_EQ(summary.q3, 4);
}

TEST(BenchStatisticsTest, BandwidthsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(1'000'000, 100), 10);
  EXPECT_DOUBLE_EQ(bus_bandwidth(10, 2), 10);
  EXPECT_DOUBLE_EQ(bus_bandwidth(10, 4), 15);
}

TEST(BenchPatternTest, OnlyTheSumOfAllWorkersInItsPlaceIsRight) {
  constexpr std::size_t kCount = 10'000;
  std::vector<float> sum(kCount, 0);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<float> own(kCount);
    Pattern(rank, 3).fill(own.data(), kCount, 5);
    for (std::size_t i = 0; i < kCount; ++i) sum[i] += own[i];
  }
  const Pattern pattern(1, 3);
  EXPECT_EQ(pattern.first_wrong(sum.data(), kCount, 5), kCount);
  EXPECT_LT(pattern.first_wrong(sum.data(), kCount, 6), kCount);
  EXPECT_LT(pattern.first_wrong(sum.data() + 1024, kCount - 1024, 5), kCount - 1024);
  sum[9'999] += 1;
  EXPECT_EQ(pattern.first_wrong(sum.data(), kCount, 5), 9'999U);
}

}  // namespace
}  // namespace lockstep::bench
