// Which operators give other bits on another number of threads. The table, with --gtest_filter='OperatorThreads.*':
// an operator that is not in it gave the same bits on 1, 2, 3 and 4 threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include "base/hash.h"
#include "tests/torch/folder.h"
#include "tests/torch/nets.h"
#include "tests/torch/own_process.h"
#include "torch/step/arithmetic.h"

namespace lockstep::testing {
namespace {

namespace F = torch::nn::functional;
using Tensors = std::vector<torch::Tensor>;
using ::testing::IsEmpty;

// An operator on inputs of these shapes, all of which get gradients.
struct Operator {
  std::string name;
  std::vector<std::vector<std::int64_t>> shapes;
  std::function<torch::Tensor(const Tensors&)> forward;
};

// Sizes whose ends and whose cuts by threads fall at many places within a vector register.
std::vector<std::int64_t> sizes() {
  std::vector<std::int64_t> some;
  for (std::int64_t i = 0; i < 4; ++i) some.push_back(132'001 + 1013 * i);
  return some;
}

// On inputs of every size, one after the other.
Operator on_every_size(const std::string& name, int inputs,
                       std::function<torch::Tensor(const Tensors&)> forward) {
  Operator op{name, {}, {}};
  for (const std::int64_t size : sizes())
    op.shapes.insert(op.shapes.end(), static_cast<std::size_t>(inputs), {size});
  op.forward = [inputs, forward = std::move(forward)](const Tensors& all) {
    Tensors results;
    for (auto first = all.begin(); first != all.end(); first += inputs)
      results.push_back(forward({first, first + inputs}));
    return torch::cat(results);
  };
  return op;
}

// One operation of the processor, correctly rounded, on each element: nothing that threads could change.
std::vector<Operator> exact() {
  const std::vector<std::int64_t> many = {300, 1001};
  return {
      on_every_size("add", 2, [](const Tensors& t) { return t[0] + t[1]; }),
      on_every_size("mul", 2, [](const Tensors& t) { return t[0] * t[1]; }),
      on_every_size("div", 2, [](const Tensors& t) { return t[0] / (t[1] + 9); }),
      on_every_size("relu", 1, [](const Tensors& t) { return torch::relu(t[0]); }),
      on_every_size("sqrt", 1, [](const Tensors& t) { return torch::sqrt(t[0].abs() + 1); }),
      on_every_size("where", 2,
                    [](const Tensors& t) { return torch::where(t[0] > 0, t[0], t[1]); }),
      {"dropout", {many}, [](const Tensors& t) { return torch::dropout(t[0], 0.3, true); }},
      {"transpose", {many}, [](const Tensors& t) { return t[0].t().contiguous(); }},
      {"cat",
       {many, many},
       [](const Tensors& t) {
         return torch::cat({t[0], t[1]}, 1);
       }},
  };
}

// Of each element too, but by a polynomial that may be another one beside the last full register of a thread's part.
std::vector<Operator> approximated() {
  return {
      on_every_size("gelu", 1, [](const Tensors& t) { return torch::gelu(t[0]); }),
      on_every_size("silu", 1, [](const Tensors& t) { return torch::silu(t[0]); }),
      on_every_size("tanh", 1, [](const Tensors& t) { return torch::tanh(t[0]); }),
      on_every_size("sigmoid", 1, [](const Tensors& t) { return torch::sigmoid(t[0]); }),
      on_every_size("exp", 1, [](const Tensors& t) { return torch::exp(t[0]); }),
      on_every_size("log", 1, [](const Tensors& t) { return torch::log(t[0].abs() + 1); }),
      on_every_size("sin", 1, [](const Tensors& t) { return torch::sin(t[0]); }),
      on_every_size("pow", 1, [](const Tensors& t) { return torch::pow(t[0].abs() + 1, 1.7); }),
  };
}

std::vector<Operator> products() {
  return {
      {"linear",
       {{64, 300}, {200, 300}, {200}},
       [](const Tensors& t) { return F::linear(t[0], t[1], t[2]); }},
      {"linear, large",
       {{256, 784}, {512, 784}, {512}},
       [](const Tensors& t) { return F::linear(t[0], t[1], t[2]); }},
      {"linear, one sample",
       {{1, 784}, {512, 784}, {512}},
       [](const Tensors& t) { return F::linear(t[0], t[1], t[2]); }},
      {"mm, long sums",
       {{8, 20000}, {20000, 8}},
       [](const Tensors& t) { return torch::mm(t[0], t[1]); }},
      {"mv", {{700, 900}, {900}}, [](const Tensors& t) { return torch::mv(t[0], t[1]); }},
      {"dot", {{100000}, {100000}}, [](const Tensors& t) { return torch::dot(t[0], t[1]); }},
      {"bmm",
       {{16, 65, 70}, {16, 70, 60}},
       [](const Tensors& t) { return torch::bmm(t[0], t[1]); }},
      {"attention",
       {{4, 4, 64, 32}, {4, 4, 64, 32}, {4, 4, 64, 32}},
       [](const Tensors& t) {
         return torch::matmul(torch::softmax(torch::matmul(t[0], t[1].transpose(2, 3)) / 5, 3),
                              t[2]);
       }},
      {"conv2d",
       {{8, 8, 28, 28}, {32, 8, 3, 3}, {32}},
       [](const Tensors& t) { return torch::conv2d(t[0], t[1], t[2], 1, 1); }},
      {"conv2d, grouped",
       {{8, 16, 28, 28}, {16, 1, 3, 3}, {16}},
       [](const Tensors& t) { return torch::conv2d(t[0], t[1], t[2], 1, 1, 1, 16); }},
      {"conv1d",
       {{8, 16, 200}, {32, 16, 5}},
       [](const Tensors& t) { return torch::conv1d(t[0], t[1]); }},
  };
}

std::vector<Operator> sums() {
  const std::vector<std::int64_t> many = {300, 1001};
  return {
      on_every_size("sum", 1, [](const Tensors& t) { return t[0].sum().view(1); }),
      {"sum over rows", {many}, [](const Tensors& t) { return t[0].sum(0); }},
      {"sum over columns", {many}, [](const Tensors& t) { return t[0].sum(1); }},
      {"sum over rows, 4 columns", {{100000, 4}}, [](const Tensors& t) { return t[0].sum(0); }},
      on_every_size("mean", 1, [](const Tensors& t) { return t[0].mean().view(1); }),
      {"var", {many}, [](const Tensors& t) { return t[0].var(); }},
      {"var over columns", {many}, [](const Tensors& t) { return t[0].var(1); }},
      {"norm", {many}, [](const Tensors& t) { return t[0].norm(); }},
      {"prod", {{100000}}, [](const Tensors& t) { return (t[0] * 0.001 + 1).prod(); }},
      {"logsumexp", {many}, [](const Tensors& t) { return torch::logsumexp(t[0], 1); }},
      {"max", {many}, [](const Tensors& t) { return t[0].max(); }},
      {"cumsum", {many}, [](const Tensors& t) { return torch::cumsum(t[0], 1); }},
      {"sort", {many}, [](const Tensors& t) { return std::get<0>(torch::sort(t[0], 1)); }},
      {"topk", {many}, [](const Tensors& t) { return std::get<0>(torch::topk(t[0], 9, 1)); }},
      {"add, one row for all", {many, {1001}}, [](const Tensors& t) { return t[0] + t[1]; }},
      {"mse_loss", {many, many}, [](const Tensors& t) { return torch::mse_loss(t[0], t[1]); }},
  };
}

torch::Tensor numbers_below(std::int64_t end, std::int64_t count) {
  return (torch::arange(count) * 7919 + 13).remainder(end);
}

std::vector<Operator> layers() {
  const std::vector<std::int64_t> image = {8, 32, 28, 28};
  return {
      {"batch_norm",
       {image, {32}, {32}},
       [](const Tensors& t) {
         return torch::batch_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false);
       }},
      {"layer_norm",
       {{500, 256}, {256}, {256}},
       [](const Tensors& t) { return torch::layer_norm(t[0], {256}, t[1], t[2]); }},
      {"group_norm",
       {image, {32}, {32}},
       [](const Tensors& t) { return torch::group_norm(t[0], 4, t[1], t[2]); }},
      {"softmax", {{500, 256}}, [](const Tensors& t) { return torch::softmax(t[0], 1); }},
      {"log_softmax", {{500, 256}}, [](const Tensors& t) { return torch::log_softmax(t[0], 1); }},
      {"nll_loss",
       {{5000, 10}},
       [](const Tensors& t) { return torch::nll_loss(t[0], numbers_below(10, 5000)); }},
      {"cross_entropy",
       {{5000, 65}},
       [](const Tensors& t) { return F::cross_entropy(t[0], numbers_below(65, 5000)); }},
      {"max_pool2d", {image}, [](const Tensors& t) { return torch::max_pool2d(t[0], 2); }},
      {"avg_pool2d", {image}, [](const Tensors& t) { return torch::avg_pool2d(t[0], 2); }},
      {"adaptive_avg_pool2d",
       {image},
       [](const Tensors& t) {
         return torch::adaptive_avg_pool2d(t[0], {1, 1});
       }},
      {"upsample, bilinear",
       {{4, 8, 20, 20}},
       [](const Tensors& t) {
         return torch::upsample_bilinear2d(t[0], {33, 33}, false);
       }},
  };
}

std::vector<Operator> lookups() {
  return {
      {"embedding",
       {{65, 128}},
       [](const Tensors& t) { return torch::embedding(t[0], numbers_below(65, 4000)); }},
      {"gather",
       {{400, 500}},
       [](const Tensors& t) {
         return t[0].gather(1, numbers_below(500, 400 * 300).view({400, 300}));
       }},
      {"scatter_add",
       {{400, 500}},
       [](const Tensors& t) {
         return torch::zeros({400, 50}).scatter_add(
             1, numbers_below(50, 400 * 500).view({400, 500}), t[0]);
       }},
      {"index_add",
       {{3000, 64}},
       [](const Tensors& t) {
         return torch::zeros({50, 64}).index_add(0, numbers_below(50, 3000), t[0]);
       }},
      {"index_put, accumulate",
       {{100000}},
       [](const Tensors& t) {
         return torch::zeros({50}).index_put({numbers_below(50, 100000)}, t[0], true);
       }},
      {"index_select",
       {{50, 64}},
       [](const Tensors& t) { return t[0].index_select(0, numbers_below(50, 3000)); }},
  };
}

std::string digest(const Tensors& tensors) {
  base::Sha256 sha;
  for (const auto& tensor : tensors) {
    const auto whole = tensor.detach().contiguous();
    sha.update({static_cast<const char*>(whole.data_ptr()), whole.nbytes()});
  }
  return base::to_hex(sha.finish()).substr(0, 16);
}

// One line for forward, one for backward.
void write_digests(const Operator& op, const std::string& suffix, std::ostream& out) {
  Tensors inputs;
  for (std::size_t i = 0; i < op.shapes.size(); ++i)
    inputs.push_back(samples(i, op.shapes[i]).requires_grad_());
  torch::manual_seed(1);
  const torch::Tensor result = op.forward(inputs);
  out << op.name << suffix << " forward\t" << digest({result}) << '\n';
  result.backward(samples(99, result.sizes().vec()));
  Tensors gradients;
  for (const auto& input : inputs) gradients.push_back(input.grad());
  out << op.name << suffix << " backward\t" << digest(gradients) << '\n';
}

constexpr const char* kOutput = "LOCKSTEP_TEST_OUTPUT";
constexpr const char* kThreads = "LOCKSTEP_TEST_THREADS";

TEST(OperatorThreadsAlone, DISABLED_WriteDigests) {
  const char* path = std::getenv(kOutput);
  const char* threads = std::getenv(kThreads);
  ASSERT_TRUE(path != nullptr && threads != nullptr);
  steps::set_arithmetic({.threads = std::atoi(threads)});
  std::ofstream out(path);
  for (const auto& group : {exact(), approximated(), sums(), layers(), lookups()}) {
    steps::use_onednn(false);
    for (const Operator& op : group) write_digests(op, "", out);
  }
  for (const Operator& op : products()) {
    steps::use_onednn(false);
    write_digests(op, "", out);
    if (!steps::has_onednn()) continue;
    steps::use_onednn(true);
    write_digests(op, ", oneDNN", out);
  }
}

using Digests = std::map<std::string, std::string>;

// Of a process that is started with `given` threads in its environment and told to have `threads`.
Digests digests_with(int threads, int given) {
  const Folder folder;
  const std::string path = folder / "digests";
  const std::string log = folder / "log";
  std::ostringstream environment;
  environment << thread_variables(given) << ' ' << kThreads << '=' << threads << ' ' << kOutput
              << "='" << path << "'";
  const bool passed =
      passes_alone("OperatorThreadsAlone.DISABLED_WriteDigests", environment.str(), log);
  std::ifstream log_file(log);
  EXPECT_TRUE(passed) << std::string(std::istreambuf_iterator<char>(log_file), {});
  Digests digests;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto tab = line.find('\t');
    digests[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return digests;
}

// Operator → the numbers of threads on which its bits are not those of one thread.
std::map<std::string, std::string> dependent_ones(const std::vector<Digests>& by_threads) {
  std::map<std::string, std::string> found;
  for (const auto& [name, on_one] : by_threads.front()) {
    for (std::size_t i = 1; i < by_threads.size(); ++i) {
      if (by_threads[i].at(name) != on_one) found[name] += ' ' + std::to_string(i + 1);
    }
  }
  return found;
}

// Those whose bits are not the same in both.
std::vector<std::string> differences(const Digests& a, const Digests& b) {
  std::vector<std::string> names;
  for (const auto& [name, digest] : a) {
    if (b.at(name) != digest) names.push_back(name);
  }
  return names;
}

TEST(OperatorThreads, DecideBitsTogetherWithTheJobAndNothingElse) {
  // The last three again, in other processes; OpenBLAS may be told in the environment or later.
  struct Run {
    int threads, given;
  };
  const std::vector<Run> runs = {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {1, 1}, {2, 1}, {4, 4}};
  std::vector<Digests> all(runs.size());
  const auto run = [&](std::size_t i) { all[i] = digests_with(runs[i].threads, runs[i].given); };
  std::thread beside([&] {
    for (std::size_t i = 0; i < runs.size(); i += 2) run(i);
  });
  for (std::size_t i = 1; i < runs.size(); i += 2) run(i);
  beside.join();
  for (const Digests& digests : all) {
    ASSERT_GT(digests.size(), 100U);
    ASSERT_EQ(digests.size(), all.front().size());
  }
  EXPECT_THAT(differences(all[0], all[4]), IsEmpty());
  EXPECT_THAT(differences(all[1], all[5]), IsEmpty());
  EXPECT_THAT(differences(all[3], all[6]), IsEmpty());

  const auto dependent = dependent_ones({all[0], all[1], all[2], all[3]});
  std::cout << "operators with other bits than on 1 thread, of " << all[0].size() << ":\n";
  for (const auto& [name, threads] : dependent)
    std::cout << "  " << name << ": on" << threads << " threads\n";
  for (const Operator& op : exact()) {
    EXPECT_EQ(dependent.count(op.name + " forward"), 0U) << op.name;
    EXPECT_EQ(dependent.count(op.name + " backward"), 0U) << op.name;
  }
  EXPECT_EQ(dependent.count("sum forward"), 1U) << "a sum of everything is cut by threads";
}

}  // namespace
}  // namespace lockstep::testing
