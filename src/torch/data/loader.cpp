#include <fmt/format.h>
#include <lockstep/data.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>

#include "base/hash.h"
#include "plan/position.h"
#include "plan/sampler.h"
#include "torch/data/reader.h"
#include "torch/data/read.h"
#include "torch/data/uneven.h"
#include "torch/device/upload.h"

namespace lockstep {

// What every epoch of a loader shares.
struct data::LoaderPlan {
  DatasetPtr dataset;
  LoaderOptions options;
  int rank = 0;
  int size = 1;
  Device device;  // for batches
  std::int64_t steps_per_epoch = 0;

  std::int64_t own_batch() const { return options.global_batch / size; }

  plan::DataOptions data_options() const {
    plan::DataOptions data;
    data.samples = dataset->size();
    data.global_batch = options.global_batch;
    data.shards = size;
    data.seed = options.seed;
    data.shuffle = options.shuffle;
    data.remainder = remainder_of(options.uneven);
    data.last_batch = options.drop_last ? plan::LastBatch::kDrop : plan::LastBatch::kKeep;
    return data;
  }

  // Of orders and samples. A worker's own part has its own, so that equal parts are not read in step.
  std::uint64_t seed() const {
    return options.placement == Placement::kOwnPart
               ? base::mix64(options.seed + static_cast<std::uint64_t>(rank))
               : options.seed;
  }

  plan::SamplerOptions own_part_options() const {
    plan::SamplerOptions own;
    own.samples = dataset->size();
    own.seed = seed();
    own.shuffle = options.shuffle;
    return own;
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
}

// As many steps as the longest part needs; shorter ones begin again.
std::int64_t own_part_steps(const LoaderPlan& plan, World& world) {
  const std::int64_t own = plan.dataset->size();
  const std::int64_t batch = plan.own_batch();
  std::int64_t most = plan.options.drop_last ? own / batch : (own + batch - 1) / batch;
  world.comm().all_reduce({&most, 1, DType::kInt64}, {.op = ReduceOp::kMax}).wait();
  if (most == 0) throw BadInput("no worker's part of the data fills a batch: make it smaller");
  return most;
}

}  // namespace

// On a GPU, of what a data set makes there itself.
constexpr std::chrono::minutes kLongestRead{5};

// The indices and batches of one epoch.
class EpochReader {
 public:
  EpochReader(std::shared_ptr<const LoaderPlan> plan, std::int64_t epoch)
      : plan_(std::move(plan)), epoch_(epoch), upload_(device::upload_to(plan_->device)) {
    if (plan_->options.placement == Placement::kOwnPart)
      own_order_.emplace(plan_->own_part_options(), epoch);
    else
      batches_.emplace(plan_->data_options());
    prefetcher_.emplace(
        0, plan_->steps_per_epoch, [this](std::int64_t step) { return read(step); },
        PrefetchOptions{plan_->options.threads, plan_->options.prefetch});
  }

  std::optional<Batch> next() {
    auto batch = prefetcher_->next();
    if (!upload_ || !batch) return batch;
    batch = upload_->move(*batch);
    upload_->arrive();
    return batch;
  }

 private:
  Batch read(std::int64_t step) {
    Batch batch = data::read(*plan_->dataset, samples_of(indices(step), epoch_, plan_->seed()));
    if (!upload_) return batch;
    return device::ready_to_move(batch, plan_->options.threads > 0, Deadline::after(kLongestRead));
  }

  std::vector<std::int64_t> indices(std::int64_t step) {
    if (own_order_) {
      std::vector<std::int64_t> samples(static_cast<std::size_t>(plan_->own_batch()));
      for (std::size_t i = 0; i < samples.size(); ++i)
        samples[i] =
            own_order_->sample_at(step * plan_->own_batch() + static_cast<std::int64_t>(i));
      return samples;
    }
    const std::lock_guard lock(mutex_);
    return batches_->samples(epoch_ * plan_->steps_per_epoch + step, plan_->rank);
  }

  std::shared_ptr<const LoaderPlan> plan_;
  std::int64_t epoch_;
  std::optional<device::Upload> upload_;
  std::mutex mutex_;
  std::optional<plan::Batches> batches_;
  std::optional<plan::EpochOrder> own_order_;
  std::optional<Prefetcher> prefetcher_;  // last: its threads use the others
};

}  // namespace data

Epoch::Epoch(std::unique_ptr<data::EpochReader> reader) : reader_(std::move(reader)) {}
Epoch::Epoch(Epoch&&) noexcept = default;
Epoch::~Epoch() = default;

bool Epoch::advance() {
  auto batch = reader_->next();
  if (!batch) return false;
  current_ = std::move(*batch);
  return true;
}

Loader::Loader(DatasetPtr dataset, World& world, const LoaderOptions& options) {
  auto plan = std::make_shared<data::LoaderPlan>();
  plan->dataset = std::move(dataset);
  plan->options = options;
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

Epoch Loader::epoch(std::int64_t number) const {
  if (number < 0) throw BadInput(fmt::format("epoch {}: epochs count from 0", number));
  return Epoch(std::make_unique<data::EpochReader>(plan_, number));
}

}  // namespace lockstep
