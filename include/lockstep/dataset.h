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

// Which sample a data set is asked for.
struct Sample {
  std::int64_t index = 0;  // 0 … size() − 1
  std::int64_t epoch = 0;  // from 0; evaluation reads epoch 0
  std::uint64_t seed =
      0;  // depends only on the job's seed, the epoch and the index; if samples are
          // drawn by weight, on the number of the draw in place of the index

  // A new LibTorch generator for the CPU with this seed. For random crops and the like.
  at::Generator generator() const;
};

// The samples with these indices, as a job with this seed asks for them in this epoch.
std::vector<Sample> samples_of(std::span<const std::int64_t> indices, std::int64_t epoch = 0,
                               std::uint64_t job_seed = 0);

// A set of samples that can be read in any order.
//
// The result of batch() depends only on the samples that it is asked for: their index, epoch and
// seed. Random augmentation draws from sample.generator(). batch() may also draw from LibTorch's
// default generator, on the CPU and on the thread that called it. It then gets a generator of the
// batch, with the seed of its first sample, and the generator of the model does not change. Do not
// use random numbers from elsewhere, such as std::random_device: they differ on every worker. Do
// not call torch::manual_seed() in batch(): it changes the random numbers of the model. A Trainer
// refuses both if it sees them.
//
// Threads:   batch() may be called from several loader threads at once.
// Blocking:  as long as reading takes.
// Failure:   BadInput for data that cannot be read.
// Ownership: batches belong to the caller.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual Batch batch(std::span<const Sample> samples) const = 0;
};

using DatasetPtr = std::shared_ptr<const Dataset>;

// Samples data[i] with targets target[i], in memory.
DatasetPtr tensor_dataset(torch::Tensor data, torch::Tensor target);

// Makes a Dataset from a map-style data set of LibTorch. Its examples are (data, target) tensors,
// or data only. They may be single examples, or stacked by
// .map(torch::data::transforms::Stack<>()). Throws BadInput if the data set does not say its size.
template <typename TorchDataset>
DatasetPtr adapt(TorchDataset dataset);

// Draws samples by weight, in place of every sample once per epoch: PyTorch's WeightedRandomSampler.
// A draw depends only on the weights, the seed, the epoch and its number in the epoch.
struct WeightedSampling {
  std::vector<double> weights = {};  // one for each sample, finite and not negative; empty: every
                                     // sample once per epoch
  std::int64_t draws = 0;            // of an epoch; 0: as many as there are samples
  bool replacement = true;           // false: a sample comes at most once per epoch
};

struct TokenOptions {
  std::int64_t context = 1024;  // tokens of one sample
  std::int64_t vocabulary = 0;  // tokens are below it; 0: what the files say
  int token_bytes = 2;          // 2 or 4, of files without a header
};

// Windows of tokens from files that may be larger than memory: only the windows of a batch are read.
// The target of a window is the same window one token later. Windows do not overlap, and none
// crosses from one file to the next. A file has tokens of 16 or 32 bits, little-endian, with the
// header of llm.c's files or without a header, as nanoGPT's. Throws BadInput for files that do not
// fit. A file that becomes shorter, or has a token outside the vocabulary, is BadInput when that
// window is read.
DatasetPtr token_dataset(const std::vector<std::string>& files, const TokenOptions& options = {});

// What a model must fit.
struct DataShape {
  std::vector<std::int64_t> sample;  // shape of one sample's data
  std::int64_t classes = 0;          // number of classes; for text, the size of the vocabulary
  bool is_text = false;
};

struct DataSplits {
  DatasetPtr train;
  DatasetPtr test;
  DataShape shape;
};

namespace datasets {

struct LoadOptions {
  std::int64_t context = 128;        // text and tokens: length of one sample
  std::int64_t vocabulary = 0;       // tokens: as in TokenOptions
  int token_bytes = 2;               // tokens: as in TokenOptions
  std::int64_t samples = 4096;       // synthetic: number of samples
  std::vector<std::int64_t> sample;  // synthetic: shape of one sample; empty: 784 numbers
  std::int64_t classes = 10;         // synthetic: number of classes
  std::uint64_t seed = 0;            // synthetic: the samples are made from it
};

// Loads a data set by name or path:
//   fashion-mnist         from Debian's package dataset-fashion-mnist
//   synthetic[:N]         N samples around one centre per class, made from the seed; learnable
//   DIRECTORY             with IDX files (the MNIST family, gz or not) or CIFAR-10's binary files
//   DIRECTORY             with token files (see token_dataset): …train….bin, and …val….bin to test
//   FILE.bin              tokens; the last tenth is for testing
//   FILE.csv              numbers, a class in the last column; every tenth row is for testing
//   any other FILE        text by characters; the last tenth is for testing
// Throws BadInput, in one line, if it is absent, truncated or corrupt.
DataSplits load(const std::string& name_or_path, const LoadOptions& options = {});

}  // namespace datasets

namespace data {

[[noreturn]] void refuse_unknown_size();

// One batch of examples. Throws BadInput with the name of the sample if its shape or type differs
// from the first.
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

  // LibTorch itself stacks the examples. If it cannot, they are read one by one, so that the error
  // names the sample that does not fit.
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
