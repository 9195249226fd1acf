// The part of every global batch that a worker reads.
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
  std::uint64_t seed = 0;         // of the order, and of every sample
  bool shuffle = true;
  Uneven uneven = Uneven::kPad;
  bool drop_last = false;  // leave out a short last batch
  Placement placement = Placement::kEverywhere;

  // How fast it comes: batches read ahead, and the loader threads that read them.
  int threads = 1;
  int prefetch = 2;
};

namespace data {
class Reader;
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

// This worker's part of every global batch, in the order of PyTorch's DistributedSampler, on world.device().
//
// Threads:   one caller at a time; loader threads stay inside.
// Blocking:  until the next batch has been read.
// Failure:   BadInput from the constructor, or what the data set throws.
// Ownership: shares the data set.
class Loader {
 public:
  Loader(DatasetPtr dataset, World& world, const LoaderOptions& options);

  std::int64_t steps_per_epoch() const;

  // Each epoch has an order of its own, and random numbers of its own for samples, the same on every run.
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

}  // namespace lockstep
