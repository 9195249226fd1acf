// Sets of samples.
#pragma once

#include <torch/torch.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

struct Batch {
  torch::Tensor data;
  torch::Tensor target;
  std::int64_t samples = 0;
};

// A sample, as a data set is asked for it.
struct Sample {
  std::int64_t index = 0;  // 0 … size() − 1
  std::int64_t epoch = 0;  // from 0; evaluation reads epoch 0
  std::uint64_t seed = 0;  // of the job, the epoch and the index alone

  // A generator of LibTorch for the CPU with this seed: for random crops and the like.
  at::Generator generator() const;
};

// The samples that a job with this seed asks for in an epoch.
std::vector<Sample> samples_of(std::span<const std::int64_t> indices, std::int64_t epoch = 0,
                               std::uint64_t job_seed = 0);

// A set of samples that can be read in any order.
//
// What batch() returns depends on the samples it is asked for alone: their index, epoch and seed. Random augmentation draws
// from sample.generator(). What batch() draws from LibTorch's default generator, on the CPU and on the thread that called it,
// comes from a generator that belongs to the batch and is seeded by its first sample; the default one stays the model's.
// A random number from elsewhere, such as std::random_device, is another one on every worker; torch::manual_seed() in batch()
// takes the model's numbers away. A Trainer refuses both where it sees them.
//
// Threads:   batch() may be called from several loader threads at once.
// Blocking:  as long as reading takes.
// Failure:   BadInput for data that cannot be read.
// Ownership: batches are the caller's.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual Batch batch(std::span<const Sample> samples) const = 0;
};

using DatasetPtr = std::shared_ptr<const Dataset>;

// Samples data[i] with targets target[i], in memory.
DatasetPtr tensor_dataset(torch::Tensor data, torch::Tensor target);

// A map-style data set of LibTorch whose examples are (data, target) tensors, or data alone; each for itself, or stacked by
// .map(torch::data::transforms::Stack<>()). BadInput if it does not say its size.
template <typename TorchDataset>
DatasetPtr adapt(TorchDataset dataset);

// What the data looks like, for choosing a model.
struct DataShape {
  std::vector<std::int64_t> sample;  // of one sample's data
  std::int64_t classes = 0;          // of the target; for text, the size of the vocabulary
  bool is_text = false;
};

struct DataSplits {
  DatasetPtr train;
  DatasetPtr test;
  DataShape shape;
};

namespace datasets {

struct LoadOptions {
  std::int64_t context = 128;        // text: characters of one sample
  std::int64_t samples = 4096;       // synthetic: samples to make
  std::vector<std::int64_t> sample;  // synthetic: the shape of one; empty: 784 numbers
  std::int64_t classes = 10;         // synthetic
  std::uint64_t seed = 0;            // synthetic
};

// By name or path:
//   fashion-mnist         of Debian's package dataset-fashion-mnist
//   synthetic[:N]         N samples around a centre of each class: learnable, made from the seed
//   DIRECTORY             with IDX files (the MNIST family, gz or not) or CIFAR-10's binary files
//   FILE.csv              numbers, a class in the last column; every tenth row is for testing
//   any other FILE        text by characters; the last tenth is for testing
// BadInput, in one line, for what is absent, truncated or corrupt.
DataSplits load(const std::string& name_or_path, const LoadOptions& options = {});

}  // namespace datasets

namespace data {

[[noreturn]] void refuse_unknown_size();

// One batch of examples. BadInput that names the sample, if one has another shape or type than the first.
Batch stacked(const std::vector<torch::Tensor>& data, const std::vector<torch::Tensor>& targets,
              std::span<const Sample> samples);

template <typename TorchDataset>
class Adapted : public Dataset {
 public:
  explicit Adapted(TorchDataset dataset) : dataset_(std::move(dataset)) {
    const auto size = dataset_.size();
    if (!size.has_value()) refuse_unknown_size();
    size_ = static_cast<std::int64_t>(*size);
  }
  std::int64_t size() const override { return size_; }
  Batch batch(std::span<const Sample> samples) const override {
    std::vector<std::size_t> indices;
    for (const Sample& sample : samples) indices.push_back(static_cast<std::size_t>(sample.index));
    if constexpr (requires(TorchDataset set) {
                    { set.get_batch(indices).data } -> std::convertible_to<torch::Tensor>;
                  }) {
      return collated(indices, samples);
    } else {
      std::vector<torch::Tensor> data, targets;
      for (auto& example : dataset_.get_batch(indices)) add(example, data, targets);
      return stacked(data, targets, samples);
    }
  }

 private:
  template <typename Example>
  static void add(const Example& example, std::vector<torch::Tensor>& data,
                  std::vector<torch::Tensor>& targets) {
    data.push_back(example.data);
    if constexpr (requires { example.target; }) targets.push_back(example.target);
  }

  // LibTorch has made one example of all. Where it cannot, they are asked for one by one to see why.
  Batch collated(const std::vector<std::size_t>& indices, std::span<const Sample> samples) const {
    std::vector<torch::Tensor> data, targets;
    try {
      add(dataset_.get_batch(indices), data, targets);
    } catch (const c10::Error&) {
      for (const std::size_t index : indices) add(dataset_.get_batch({index}), data, targets);
      stacked(data, targets, samples);
      throw;
    }
    return {data.front(), targets.empty() ? torch::Tensor() : targets.front(),
            static_cast<std::int64_t>(samples.size())};
  }

  mutable TorchDataset dataset_;  // LibTorch's get() is not const; its data sets only read
  std::int64_t size_ = 0;
};

}  // namespace data

template <typename TorchDataset>
DatasetPtr adapt(TorchDataset dataset) {
  return std::make_shared<data::Adapted<TorchDataset>>(std::move(dataset));
}

}  // namespace lockstep
