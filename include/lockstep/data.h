// Data: sets of samples, and the part of every global batch that a worker reads.
#pragma once

#include <lockstep/world.h>
#include <torch/torch.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
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

// A set of samples that can be read in any order.
//
// Threads:   batch() may be called from several loader threads at once. It draws random numbers from
//            generators of its own, seeded by index: LibTorch's belongs to the model.
// Blocking:  as long as reading takes.
// Failure:   BadInput for data that cannot be read.
// Ownership: batches are the caller's.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual Batch batch(std::span<const std::int64_t> indices) const = 0;
};

using DatasetPtr = std::shared_ptr<const Dataset>;

// Samples data[i] with targets target[i], in memory.
DatasetPtr tensor_dataset(torch::Tensor data, torch::Tensor target);

// A map-style data set of LibTorch whose examples are (data, target) tensors.
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

// What to do with the samples that the workers do not divide.
enum class Uneven : std::uint8_t {
  kPad,   // as PyTorch: some samples are visited again, so that all workers have as many
  kDrop,  // some are left out, other ones each epoch
  kKeep,  // every sample once: use backward(loss, batch.samples), and where a last batch has none for
          // this worker, synchronize()
};

// Where the data lies.
enum class Placement : std::uint8_t {
  kEverywhere,  // every worker can read every sample
  kOwnPart,     // a worker's data set holds only its own part, such as a directory per worker. The
                // longest part sets the steps of an epoch, shorter ones begin again. What is
                // learnt then depends on how the data was divided
};

struct LoaderOptions {
  // What the result means.
  std::int64_t global_batch = 0;  // samples of one step over all workers, a multiple of them
  std::uint64_t seed = 0;
  bool shuffle = true;
  Uneven uneven = Uneven::kPad;
  bool drop_last = false;  // leave out a short last batch
  Placement placement = Placement::kEverywhere;

  // How fast it comes: batches read ahead, and the loader threads that read them.
  int threads = 1;
  int prefetch = 2;
};

namespace data {
class EpochReader;
struct LoaderPlan;
}  // namespace data

// One epoch of one worker's batches, for a range-for loop.
//
// Threads:   one caller at a time.
// Blocking:  until the next batch has been read; the destructor, until reads under way end.
// Failure:   what the data set throws.
// Ownership: shares the data set; a batch is valid until the next.
class Epoch {
 public:
  explicit Epoch(std::unique_ptr<data::EpochReader> reader);
  Epoch(Epoch&&) noexcept;
  ~Epoch();

  class Iterator {
   public:
    Iterator(Epoch* epoch, bool end) : epoch_(epoch), end_(end) {}
    Batch& operator*() const { return epoch_->current_; }
    Iterator& operator++() {
      end_ = !epoch_->advance();
      return *this;
    }
    bool operator!=(const Iterator& other) const { return end_ != other.end_; }

   private:
    Epoch* epoch_;
    bool end_;
  };
  Iterator begin() { return {this, !advance()}; }
  Iterator end() { return {this, true}; }

 private:
  bool advance();

  std::unique_ptr<data::EpochReader> reader_;
  Batch current_;
};

// This worker's part of every global batch, in the order of PyTorch's DistributedSampler.
//
// Threads:   one caller at a time; loader threads stay inside.
// Blocking:  until the next batch has been read.
// Failure:   BadInput from the constructor, or what the data set throws.
// Ownership: shares the data set.
class Loader {
 public:
  Loader(DatasetPtr dataset, World& world, const LoaderOptions& options);

  std::int64_t steps_per_epoch() const;

  // Each epoch has an order of its own, the same on every run.
  Epoch epoch(std::int64_t number) const;

 private:
  std::shared_ptr<const data::LoaderPlan> plan_;
};

inline Loader loader(DatasetPtr dataset, World& world, const LoaderOptions& options) {
  return Loader(std::move(dataset), world, options);
}
template <typename TorchDataset>
requires(!std::convertible_to<TorchDataset, DatasetPtr>) Loader
    loader(TorchDataset dataset, World& world, const LoaderOptions& options) {
  return Loader(adapt(std::move(dataset)), world, options);
}

// The same order for torch::data::DataLoader, with a batch size of global_batch / workers. A
// DataLoader copies its sampler and resets it at each begin(): each begins the next epoch.
//
// Threads:   one caller at a time.
// Blocking:  never; reset() takes the time of a shuffle.
// Failure:   BadInput for no samples.
// Ownership: a value.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // LibTorch's optional types, which differ between its versions.
  using OptionalSize = decltype(std::declval<torch::data::datasets::MNIST&>().size());
  using OptionalIndices = decltype(std::declval<torch::data::samplers::Sampler<>&>().next(0));

  DistributedSampler(std::int64_t samples, const World& world, std::uint64_t seed = 0,
                     bool shuffle = true, Uneven uneven = Uneven::kPad);

  void set_epoch(std::int64_t epoch);  // the next reset() begins it

  void reset(OptionalSize new_size = {}) override;
  OptionalIndices next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void begin_epoch();

  struct Share {
    std::int64_t samples;
    int rank;
    int size;
    std::uint64_t seed;
    bool shuffle;
    Uneven uneven;
  };
  Share share_;
  std::int64_t next_epoch_ = 0;
  std::int64_t epoch_ = 0;
  std::vector<std::int64_t> order_;
  std::size_t position_ = 0;
};

namespace data {

template <typename TorchDataset>
class Adapted : public Dataset {
 public:
  explicit Adapted(TorchDataset dataset) : dataset_(std::move(dataset)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(*dataset_.size()); }
  Batch batch(std::span<const std::int64_t> indices) const override {
    const std::vector<std::size_t> list(indices.begin(), indices.end());
    std::vector<torch::Tensor> inputs;
    std::vector<torch::Tensor> targets;
    for (auto& example : dataset_.get_batch(list)) {
      inputs.push_back(example.data);
      targets.push_back(example.target);
    }
    return {torch::stack(inputs), torch::stack(targets), static_cast<std::int64_t>(list.size())};
  }

 private:
  mutable TorchDataset dataset_;  // LibTorch's get() is not const; its data sets only read
};

}  // namespace data

template <typename TorchDataset>
DatasetPtr adapt(TorchDataset dataset) {
  return std::make_shared<data::Adapted<TorchDataset>>(std::move(dataset));
}

}  // namespace lockstep
