// Loaders: each worker reads its part of every global batch.
#pragma once

#include <lockstep/dataset.h>
#include <lockstep/world.h>
#include <torch/torch.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep {

// What to do if the number of workers does not divide the number of samples.
enum class Uneven : std::uint8_t {
  kPad,   // as PyTorch: some samples are read twice, so that all workers have the same number
  kDrop,  // some samples are left out, different ones in each epoch
  kKeep,  // every sample is read once. Use backward(loss, batch.samples); call synchronize() if the
          // last batch has no samples for this worker: its tensors have a first dimension of 0
};

// Where the data is.
enum class Placement : std::uint8_t {
  kEverywhere,  // every worker can read every sample
  kOwnPart,     // the data set of a worker has only that worker's part, such as a directory per
                // worker. The longest part decides how many steps an epoch has; shorter parts begin
                // again. The result then depends on how the data was divided
};

struct LoaderOptions {
  // What the result means.
  std::int64_t global_batch = 0;  // samples of one step; a multiple of the number of workers
  std::uint64_t seed = 0;         // decides the order and the seed of every sample
  bool shuffle = true;
  Uneven uneven = Uneven::kPad;
  bool drop_last = false;  // leave out a short last batch
  Placement placement = Placement::kEverywhere;
  WeightedSampling weighted = {};  // draws samples by weight; wants shuffle

  // How fast it comes: loader threads, and how many batches they read ahead.
  int threads = 1;
  int prefetch = 2;
};

namespace data {
class Reader;
struct LoaderPlan;
}  // namespace data
namespace plan {
class WeightedDraws;
}  // namespace plan

// One epoch of one worker's batches, for a range-for loop.
//
// Threads:   one caller at a time.
// Blocking:  the loop waits until the next batch has been read. The destructor waits until reads
//            that have begun are done.
// Failure:   what the data set throws.
// Ownership: shares the data set. A batch is valid until the loop goes on to the next one.
class Epoch {
 public:
  explicit Epoch(std::unique_ptr<data::Reader> reader);
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

  std::unique_ptr<data::Reader> reader_;
  Batch current_;
};

// Reads this worker's part of every global batch, in the order of PyTorch's DistributedSampler, or
// draws it by weight, or reads streams (stream.h). The tensors are on world.device().
//
// Threads:   one caller at a time; loader threads stay inside.
// Blocking:  until the next batch has been read.
// Failure:   BadInput from the constructor, or what the data set throws.
// Ownership: shares the data set.
class Loader {
 public:
  Loader(DatasetPtr dataset, World& world, const LoaderOptions& options);

  std::int64_t steps_per_epoch() const;

  // Each epoch has its own order, and its own random numbers for samples. Both are the same in
  // every run. `first_step`: goes on in the middle of the epoch, with this batch of it.
  Epoch epoch(std::int64_t number, std::int64_t first_step = 0) const;

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

// The same order for torch::data::DataLoader. Give the DataLoader a batch size of global_batch /
// workers. A DataLoader copies its sampler and resets the copy at each begin(), so each begin()
// starts the next epoch.
//
// Threads:   one caller at a time.
// Blocking:  never; reset() takes the time of a shuffle.
// Failure:   BadInput if there are no samples.
// Ownership: a value.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // LibTorch's optional types. They differ between its versions.
  using OptionalSize = decltype(std::declval<torch::data::datasets::MNIST&>().size());
  using OptionalIndices = decltype(std::declval<torch::data::samplers::Sampler<>&>().next(0));

  DistributedSampler(std::int64_t samples, const World& world, std::uint64_t seed = 0,
                     bool shuffle = true, Uneven uneven = Uneven::kPad);
  // Draws by weight; as many samples as there are weights.
  DistributedSampler(const WeightedSampling& weighted, const World& world, std::uint64_t seed = 0,
                     Uneven uneven = Uneven::kPad);

  void set_epoch(std::int64_t epoch);  // the next reset() begins this epoch

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
    std::shared_ptr<const plan::WeightedDraws> weights = nullptr;
  };
  Share share_;
  std::int64_t next_epoch_ = 0;
  std::int64_t epoch_ = 0;
  std::vector<std::int64_t> order_;
  std::size_t position_ = 0;
};

}  // namespace lockstep
