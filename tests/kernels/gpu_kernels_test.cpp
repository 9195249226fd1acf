// The optimizers' kernels on a real GPU: the bits of the CPU's, in a CUDA graph too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "flat/cuda/handles.h"
#include "flat/device_tables.h"
#include "flat/fold.h"
#include "flat/update_loops.h"
#include "plan/tree.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/needs_a_gpu.h"
#include "tests/support/elements.h"

namespace lockstep::testing {
namespace {

using cuda::DeviceArray;

class GpuMachine : public Machine {
 public:
  std::byte* allocate(std::size_t bytes) override {
    memory_.emplace_back(std::max<std::size_t>(bytes, 1));
    return memory_.back().data();
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    cuda::check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
    wait();  // it may return before streams see what it copied
  }
  void update(const flat::UpdateTask& task) override {
    flat::queue_update(task, stream_.get());
    wait();
  }
  void measure(const flat::MeasureTask& task) override {
    flat::queue_measure(task, stream_.get());
    wait();
  }
  void weights(const flat::WeightsTask& task) override {
    flat::queue_weights(task, stream_.get());
    wait();
  }
  void changes(const flat::ChangesTask& task) override {
    flat::queue_changes(task, stream_.get());
    wait();
  }
  void clip(const flat::ClipTask& task) override {
    flat::queue_clip(task, stream_.get());
    wait();
  }
  void entry_norms(const flat::EntryNormsTask& task) override {
    flat::queue_entry_norms(task, stream_.get());
    wait();
  }
  void trusts(const flat::TrustTask& task) override {
    flat::queue_trusts(task, stream_.get());
    wait();
  }
  void gather(const flat::GatherTask& task) override {
    flat::queue_gather(task, stream_.get());
    wait();
  }

 private:
  static void wait() { cuda::check(cudaDeviceSynchronize(), "a kernel"); }

  cuda::Stream stream_ = cuda::make_stream();
  std::vector<DeviceArray<std::byte>> memory_;
};

TEST(GpuKernels, UpdatesWithTheBitsOfTheCpu) {
  NEEDS_A_GPU();
  GpuMachine machine;
  expect_updates_of_the_cpu(machine);
}

TEST(GpuKernels, WatchesWithTheParitiesOfTheCpu) {
  NEEDS_A_GPU();
  GpuMachine machine;
  expect_watched_updates_of_the_cpu(machine);
}

TEST(GpuKernels, SkipsAStepWhole) {
  NEEDS_A_GPU();
  GpuMachine machine;
  expect_nothing_written_when_skipped(machine);
}

TEST(GpuKernels, TakesANoteAlongAlsoWhenItIsSkipped) {
  NEEDS_A_GPU();
  const plan::Layout layout({{"w", DType::kFloat32, 10}});
  const flat::ChunkTables tables{layout, plan::plan_pieces(layout, 1)};
  const flat::DeviceTables device_tables{tables};
  const DeviceArray<float> memory{std::vector<float>(64)};
  const DeviceArray<std::uint32_t> skip{std::vector<std::uint32_t>{1}};
  const DeviceArray<double> loss{std::vector<double>{1.5, -2.5, 3.5}};
  double* heard = nullptr;
  cuda::check(cudaMallocHost(&heard, 3 * sizeof(double)), "cudaMallocHost");
  const cuda::Stream stream = cuda::make_stream();
  for (const bool skipped : {true, false}) {
    std::fill_n(heard, 3, 0.0);
    flat::UpdateTask task;
    task.range = {device_tables.view(), tables.all(), DType::kFloat32};
    task.rule = flat::UpdateRule::kSgd;
    task.parameters = memory.data();
    task.gradients.flat = memory.data() + 16;
    task.skip = skipped ? skip.data() : nullptr;
    task.note = {loss.data(), heard, 2 * sizeof(double)};
    flat::queue_update(task, stream.get());
    cuda::check(cudaStreamSynchronize(stream.get()), "the update");
    EXPECT_EQ(std::vector<double>(heard, heard + 3), (std::vector<double>{1.5, -2.5, 0}));
  }
  cuda::check(cudaFreeHost(heard), "cudaFreeHost");
}

TEST(GpuKernels, FindsTheNormOfTheCpu) {
  NEEDS_A_GPU();
  GpuMachine machine;
  expect_norms_of_the_cpu(machine);
}

TEST(GpuKernels, FindsTheTrustsOfTheCpu) {
  NEEDS_A_GPU();
  GpuMachine machine;
  expect_trusts_of_the_cpu(machine);
}

TEST(GpuKernels, AddsSquaresInTheOrderOfTheTree) {
  NEEDS_A_GPU();
  GpuMachine machine;
  std::vector<std::size_t> sizes;
  for (std::size_t n = 0; n <= 300; ++n) sizes.push_back(n);
  for (const std::size_t more : {2047, 2048, 2049, 4097, 3 * 2048 + 5, 70'001, 2048 * 2048 + 4097})
    sizes.push_back(more);
  expect_the_order_of_the_tree(machine, sizes);
}

TEST(GpuKernels, GathersGradients) {
  NEEDS_A_GPU();
  GpuMachine machine;
  expect_gradients_gathered(machine, true);
}

TEST(GpuKernels, LeavesGradientsAlone) {
  NEEDS_A_GPU();
  GpuMachine machine;
  expect_gradients_gathered(machine, false);
}

TEST(GpuKernels, KeepsTypesApartThatLieBesideEachOther) {
  NEEDS_A_GPU();
  GpuMachine machine;
  expect_types_beside_each_other(machine);
}

// What was queued on a stream, to be launched again and again.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& queue) : stream_(stream) {
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                "cudaStreamBeginCapture");
    queue();
    cuda::check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    cuda::check(cudaGraphInstantiate(&launchable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Graph() {
    if (launchable_ != nullptr) static_cast<void>(cudaGraphExecDestroy(launchable_));
    if (graph_ != nullptr) static_cast<void>(cudaGraphDestroy(graph_));
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() const { cuda::check(cudaGraphLaunch(launchable_, stream_), "cudaGraphLaunch"); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t launchable_ = nullptr;
};

// A whole step, first as it is and then from a graph, with other numbers each time.
class CapturedStep {
 public:
  static constexpr std::size_t kCount = 50'003;
  static constexpr double kMost = 2;

  CapturedStep() : layout_({{"w", DType::kFloat32, kCount}}) {
    task_.range = {device_tables_.view(), tables_.all(), DType::kFloat32};
    task_.numbers = numbers_.data();
    task_.parameters = device_.parameter.data();
    task_.states[0] = device_.mean.data();
    task_.states[1] = device_.variance.data();
    task_.gradients = {DType::kFloat32, device_.gradient.data(), nullptr};
    task_.factor = &clip_.result()->factor;
    task_.skip = &clip_.result()->skip;
  }

  void capture() {
    graph_.emplace(stream_.get(), [&] { queue(); });
  }
  // The graph, if there is one yet.
  void launch(const flat::AdamStep& step) {
    const auto numbers = flat::element::numbers_of(step);
    cuda::check(cudaMemcpy(numbers_.data(), &numbers, sizeof(numbers), cudaMemcpyDefault),
                "cudaMemcpy");
    graph_ ? graph_->launch() : queue();
    cuda::check(cudaDeviceSynchronize(), "the step");
  }
  void launch_on_the_cpu(const flat::AdamStep& step) {
    std::vector<double> squares(layout_.blocks());
    for (std::size_t i = 0; i < squares.size(); ++i) {
      const plan::Stretch block = layout_.block(i);
      squares[i] =
          flat::sum_of_squares(DType::kFloat32, host_.gradient.data() + block.first, block.count);
    }
    const double norm = std::sqrt(plan::tree_sum(squares));
    std::vector<float> gradient(kCount);
    flat::scale(DType::kFloat32, std::min(1.0, kMost / (norm + 1e-6)), host_.gradient.data(),
                gradient.data(), kCount);
    flat::update({DType::kFloat32,
                  host_.parameter.data(),
                  gradient.data(),
                  {host_.mean.data(), host_.variance.data()},
                  kCount},
                 step);
  }
  void expect_the_same() {
    std::vector<float> there(kCount);
    cuda::check(cudaMemcpy(there.data(), device_.parameter.data(), kCount * sizeof(float),
                           cudaMemcpyDefault),
                "cudaMemcpy");
    EXPECT_TRUE(same_bits(there, host_.parameter));
  }

 private:
  // What a step of Adam reads and writes, here and there.
  struct OnHost {
    std::vector<float> parameter = rough_elements<float>(kCount, 1);
    std::vector<float> gradient = rough_elements<float>(kCount, 2);
    std::vector<float> mean = std::vector<float>(kCount);
    std::vector<float> variance = std::vector<float>(kCount);
  };
  struct OnDevice {
    explicit OnDevice(const OnHost& host)
        : parameter(host.parameter),
          gradient(host.gradient),
          mean(host.mean),
          variance(host.variance) {}

    DeviceArray<float> parameter;
    DeviceArray<float> gradient;
    DeviceArray<float> mean;
    DeviceArray<float> variance;
  };

  void queue() {
    flat::queue_measure(
        {task_.range, task_.gradients, false, clip_.row(flat::ClipMemory::kGradients)},
        stream_.get());
    flat::queue_clip(clip_.task(kMost), stream_.get());
    flat::queue_update(task_, stream_.get());
  }

  OnHost host_;
  plan::Layout layout_;
  flat::ChunkTables tables_{layout_, plan::plan_pieces(layout_, 1)};
  flat::DeviceTables device_tables_{tables_};
  flat::ClipMemory clip_{layout_.blocks()};
  OnDevice device_{host_};
  DeviceArray<flat::element::AdamNumbers<double>> numbers_{1};
  cuda::Stream stream_ = cuda::make_stream();
  flat::UpdateTask task_;
  std::optional<Graph> graph_;
};

TEST(GpuKernels, AGraphTakesOtherNumbersEachTime) {
  NEEDS_A_GPU();
  CapturedStep step;
  for (std::int64_t t = 1; t <= 4; ++t) {
    if (t == 2) step.capture();
    const flat::AdamStep numbers{0.01 / static_cast<double>(t), 0.9, 0.999, 1e-8, 0.1, true, t};
    step.launch(numbers);
    step.launch_on_the_cpu(numbers);
    step.expect_the_same();
  }
}

// A step of LAMB, whose trusts the device finds in each step.
class LayerWiseStep {
 public:
  using Norms = flat::ClipMemory;

  LayerWiseStep() {
    task_.range = {device_tables_.view(), tables_.all(), DType::kFloat32};
    task_.rule = flat::UpdateRule::kLamb;
    task_.numbers = numbers_.data();
    task_.parameters = parameters_.data();
    task_.states[0] = means_.data();
    task_.states[1] = squares_.data();
    task_.gradients = {DType::kFloat32, gradients_.data(), nullptr};
    task_.trusts = entries_.trusts();
    task_.skip = &norms_.result(Norms::kChanges)->skip;
  }
  void queue(cudaStream_t stream) const {
    flat::queue_weights({task_.range, task_.parameters, norms_.row(Norms::kWeights)}, stream);
    flat::queue_changes({task_, norms_.row(Norms::kChanges)}, stream);
    flat::queue_clip(norms_.task(0, 1, Norms::kChanges), stream);
    flat::queue_entry_norms(
        entries_.norms_task(device_tables_.view(), norms_, Norms::kWeights, Norms::kChanges),
        stream);
    flat::queue_trusts(entries_.trust_task(Norms::kChanges, nullptr), stream);
    flat::queue_update(task_, stream);
  }
  void set(const flat::LambStep& step) const {
    const auto numbers = flat::element::numbers_of(step);
    cuda::check(cudaMemcpy(numbers_.data(), &numbers, sizeof(numbers), cudaMemcpyDefault),
                "cudaMemcpy");
  }
  std::vector<float> values() const {
    std::vector<float> values(elements_);
    cuda::check(
        cudaMemcpy(values.data(), parameters_.data(), elements_ * sizeof(float), cudaMemcpyDefault),
        "cudaMemcpy");
    return values;
  }
  std::vector<double> trusts() const {
    std::vector<double> values(layout_.entries().size());
    cuda::check(cudaMemcpy(values.data(), entries_.trusts(), values.size() * sizeof(double),
                           cudaMemcpyDefault),
                "cudaMemcpy");
    return values;
  }

 private:
  plan::Layout layout_{{{"w", DType::kFloat32, 50'003}, {"b", DType::kFloat32, 100}}};
  std::size_t elements_ = layout_.bytes() / sizeof(float);
  flat::ChunkTables tables_{layout_, plan::plan_pieces(layout_, 1)};
  flat::DeviceTables device_tables_{tables_};
  Norms norms_{layout_.blocks()};
  flat::EntryMemory entries_{std::vector<flat::element::Trust>(2)};
  DeviceArray<flat::element::LambNumbers<double>> numbers_{1};
  DeviceArray<float> parameters_{rough_elements<float>(elements_, 1)};
  DeviceArray<float> gradients_{rough_elements<float>(elements_, 2)};
  DeviceArray<float> means_{elements_};
  DeviceArray<float> squares_{elements_};
  flat::UpdateTask task_;
};

TEST(GpuKernels, AGraphFindsTheTrustsEachTime) {
  NEEDS_A_GPU();
  const cuda::Stream stream = cuda::make_stream();
  const LayerWiseStep queued;
  const LayerWiseStep captured;
  const Graph graph(stream.get(), [&] { captured.queue(stream.get()); });
  std::vector<double> before;
  for (std::int64_t t = 1; t <= 4; ++t) {
    const flat::LambStep step{0.01 / static_cast<double>(t), 0.9, 0.999, 1e-6, 0.1, t};
    queued.set(step);
    captured.set(step);
    queued.queue(stream.get());
    graph.launch();
    cuda::check(cudaDeviceSynchronize(), "the steps");
    EXPECT_TRUE(same_bits(captured.values(), queued.values()));
    EXPECT_EQ(captured.trusts(), queued.trusts());
    EXPECT_NE(captured.trusts(), before);
    before = captured.trusts();
  }
}

}  // namespace
}  // namespace lockstep::testing
