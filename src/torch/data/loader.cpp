#include <fmt/format.h>
#include <lockstep/data.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "plan/position.h"
#include "plan/sampler.h"
#include "plan/seed.h"
#include "torch/data/reader.h"
#include "torch/data/streams.h"

namespace lockstep {

namespace data {
namespace {

// The plan's word for the public one.
plan::Remainder remainder_of(Uneven uneven) {
  switch (uneven) {
    case Uneven::kDrop:
      return plan::Remainder::kDrop;
    case Uneven::kKeep:
      return plan::Remainder::kKeep;
    case Uneven::kPad:
      break;
  }
  return plan::Remainder::kPad;
}

}  // namespace
}  // namespace data

// What every epoch of a loader shares.
struct data::LoaderPlan {
  DatasetPtr dataset;
  LoaderOptions options;  // without the weights
  std::shared_ptr<const plan::WeightedDraws> weights;
  int rank = 0;
  int size = 1;
  Device device;  // for batches
  std::int64_t steps_per_epoch = 0;

  std::int64_t own_batch() const { return options.global_batch / size; }

  plan::DataOptions data_options() const {
    plan::DataOptions all{
        .samples = dataset->size(),
        .global_batch = options.global_batch,
        .shards = size,
        .seed = options.seed,
        .shuffle = options.shuffle,
        .remainder = remainder_of(options.uneven),
        .last_batch = options.drop_last ? plan::LastBatch::kDrop : plan::LastBatch::kKeep,
        .weights = weights};
    if (streams_in(*dataset) == nullptr) return all;
    // To pad, every stream gives one more sample of its own.
    all.shuffle = false;
    all.samples = plan::epoch_entries(
        {.samples = all.samples, .shuffle = false, .remainder = all.remainder}, size);
    all.remainder = plan::Remainder::kKeep;
    return all;
  }

  // For orders and samples. If each worker has a part of its own, each has its own seed, so that equal parts are read in
  // different orders.
  std::uint64_t seed() const {
    return options.placement == Placement::kOwnPart
               ? base::mix64(options.seed + static_cast<std::uint64_t>(rank))
               : options.seed;
  }

  plan::SamplerOptions own_part_options() const {
    return {
        .samples = dataset->size(), .seed = seed(), .shuffle = options.shuffle, .weights = weights};
  }
};

namespace data {
namespace {

void check(const LoaderPlan& plan) {
  const LoaderOptions& options = plan.options;
  if (plan.dataset == nullptr || plan.dataset->size() < 1)
    throw BadInput("the data set is empty: nothing to load");
  if (options.global_batch < plan.size) {
    throw BadInput(
        fmt::format("a global batch of {} is smaller than the {} workers: each needs a "
                    "sample of it",
                    options.global_batch, plan.size));
  }
  if (options.global_batch % plan.size != 0) {
    throw BadInput(
        fmt::format("a global batch of {} cannot be divided among {} workers: choose a "
                    "multiple of {}",
                    options.global_batch, plan.size, plan.size));
  }
  if (options.threads < 0 || options.prefetch < 0)
    throw BadInput("loader threads and prefetch must be 0 or more");
  if (plan.weights && !options.shuffle)
    throw BadInput("samples that are drawn by weight have no order of their own: leave shuffle on");
  if (streams_in(*plan.dataset) == nullptr) return;
  if (plan.weights) refuse_weighted_streams();
  if (options.placement == Placement::kOwnPart)
    throw BadInput("each worker has a stream of its own already: leave placement as it is");
}

// As many steps as the longest part of any worker needs; workers with less data read theirs again. Collective.
std::int64_t own_part_steps(const LoaderPlan& plan, World& world) {
  const std::int64_t own = plan::order_length(plan.own_part_options());
  const std::int64_t batch = plan.own_batch();
  std::int64_t most = plan.options.drop_last ? own / batch : (own + batch - 1) / batch;
  world.comm().all_reduce({&most, 1, DType::kInt64}, {.op = ReduceOp::kMax}).wait();
  if (most == 0) throw BadInput("no worker's part of the data fills a batch: make it smaller");
  return most;
}

using PlanPtr = std::shared_ptr<const LoaderPlan>;

// The samples of a batch by its number in the epoch.
Reader::Samples own_part_samples(const PlanPtr& plan, std::int64_t epoch) {
  return
      [plan, epoch, order = plan::EpochOrder(plan->own_part_options(), epoch)](std::int64_t step) {
        std::vector<std::int64_t> indices(static_cast<std::size_t>(plan->own_batch()));
        const std::int64_t first = step * plan->own_batch();
        for (std::size_t i = 0; i < indices.size(); ++i)
          indices[i] = order.sample_at(first + static_cast<std::int64_t>(i));
        auto samples = samples_of(indices, epoch, plan->seed());
        for (std::size_t i = 0; i < samples.size() && plan->weights; ++i) {
          samples[i].seed =
              plan::drawn_sample_seed(plan->seed(), epoch, first + static_cast<std::int64_t>(i));
        }
        return samples;
      };
}
Reader::Samples shared_samples(const PlanPtr& plan, std::int64_t epoch) {
  return [plan, first = epoch * plan->steps_per_epoch,
          all = std::make_shared<ShardSamples>(plan->data_options())](std::int64_t step) {
    return all->of(first + step, plan->rank);
  };
}

// Opens the batches of one epoch, from one of them on.
std::unique_ptr<Reader> open_epoch(const PlanPtr& plan, std::int64_t epoch, std::int64_t first) {
  const auto all = plan->options.placement == Placement::kOwnPart ? own_part_samples(plan, epoch)
                                                                  : shared_samples(plan, epoch);
  PrefetchOptions prefetch{plan->options.threads, plan->options.prefetch};
  DatasetPtr dataset = plan->dataset;
  if (const StreamSet* const streams = streams_in(*dataset)) {
    dataset = std::make_shared<StreamReader>(*streams, plan->size, plan->options.seed);
    prefetch = in_order(prefetch);
  }
  return std::make_unique<Reader>(
      std::move(dataset), plan->steps_per_epoch - first,
      [all, first](std::int64_t number) { return all(first + number); }, prefetch, plan->device);
}

Batch without_samples(const Batch& batch) {
  const auto none = [](const torch::Tensor& tensor) {
    return tensor.defined() ? tensor.slice(0, 0, 0) : tensor;
  };
  return {none(batch.data), none(batch.target), 0};
}

}  // namespace
}  // namespace data

Epoch::Epoch(std::unique_ptr<data::Reader> reader) : reader_(std::move(reader)) {}
Epoch::Epoch(Epoch&&) noexcept = default;
Epoch::~Epoch() = default;

// If a short last batch has no samples for this worker, it has those of another batch, of which none are left: a model
// can run forward with it.
bool Epoch::advance() {
  auto batch = reader_->next();
  if (!batch) return false;
  if (batch->samples == 0) {
    const std::int64_t first[] = {0};
    batch = data::without_samples(current_.data.defined() ? current_
                                                          : reader_->again(samples_of(first)));
  }
  current_ = std::move(*batch);
  return true;
}

Loader::Loader(DatasetPtr dataset, World& world, const LoaderOptions& options) {
  auto plan = std::make_shared<data::LoaderPlan>();
  plan->dataset = std::move(dataset);
  plan->options = options;
  plan->options.weighted = {};
  plan->weights = data::draws_of(options.weighted);
  plan->rank = world.rank();
  plan->size = world.size();
  plan->device = world.device();
  data::check(*plan);
  plan->steps_per_epoch = options.placement == Placement::kOwnPart
                              ? data::own_part_steps(*plan, world)
                              : plan::Batches(plan->data_options()).steps_per_epoch();
  plan_ = std::move(plan);
}

std::int64_t Loader::steps_per_epoch() const {
  return plan_->steps_per_epoch;
}

Epoch Loader::epoch(std::int64_t number, std::int64_t first_step) const {
  if (number < 0) throw BadInput(fmt::format("epoch {}: epochs count from 0", number));
  if (first_step < 0 || first_step > steps_per_epoch()) {
    throw BadInput(
        fmt::format("an epoch of {} steps cannot go on at step {}", steps_per_epoch(), first_step));
  }
  return Epoch(data::open_epoch(plan_, number, first_step));
}

DistributedSampler::DistributedSampler(std::int64_t samples, const World& world, std::uint64_t seed,
                                       bool shuffle, Uneven uneven)
    : share_{samples, world.rank(), world.size(), seed, shuffle, uneven} {
  begin_epoch();
}

DistributedSampler::DistributedSampler(const WeightedSampling& weighted, const World& world,
                                       std::uint64_t seed, Uneven uneven)
    : share_{static_cast<std::int64_t>(weighted.weights.size()),
             world.rank(),
             world.size(),
             seed,
             /*shuffle=*/true,
             uneven,
             data::draws_of(weighted)} {
  begin_epoch();
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  next_epoch_ = epoch;
}

void DistributedSampler::begin_epoch() {
  const plan::SamplerOptions options{.samples = share_.samples,
                                     .seed = share_.seed,
                                     .shuffle = share_.shuffle,
                                     .remainder = data::remainder_of(share_.uneven),
                                     .weights = share_.weights};
  order_ = plan::shard_samples(options, epoch_, share_.rank, share_.size);
  position_ = 0;
}

void DistributedSampler::reset(OptionalSize new_size) {
  if (new_size) share_.samples = static_cast<std::int64_t>(*new_size);
  epoch_ = next_epoch_++;
  begin_epoch();
}

DistributedSampler::OptionalIndices DistributedSampler::next(std::size_t batch_size) {
  const std::size_t count = std::min(batch_size, order_.size() - position_);
  if (count == 0) return {};
  const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(position_);
  position_ += count;
  return std::vector<std::size_t>(begin, begin + static_cast<std::ptrdiff_t>(count));
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", torch::tensor(epoch_), /*is_buffer=*/true);
  archive.write("position", torch::tensor(static_cast<std::int64_t>(position_)),
                /*is_buffer=*/true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  torch::Tensor epoch;
  torch::Tensor position;
  archive.read("epoch", epoch, /*is_buffer=*/true);
  archive.read("position", position, /*is_buffer=*/true);
  epoch_ = epoch.item<std::int64_t>();
  next_epoch_ = epoch_ + 1;
  begin_epoch();
  const auto most = static_cast<std::int64_t>(order_.size());
  position_ =
      static_cast<std::size_t>(std::clamp<std::int64_t>(position.item<std::int64_t>(), 0, most));
}

}  // namespace lockstep
