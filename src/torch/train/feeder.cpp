#include "torch/train/feeder.h"

#include "base/check.h"

namespace lockstep::train {

Feeder::Feeder(DatasetPtr dataset, const plan::DataOptions& options, plan::ShardRange hosted,
               Span steps, const data::PrefetchOptions& prefetch)
    : dataset_(std::move(dataset)), hosted_(hosted), steps_(steps), batches_(options) {
  const std::int64_t count = (steps.end_step - steps.first_step) * hosted.size();
  prefetcher_.emplace(
      0, count, [this](std::int64_t number) { return read(number); }, prefetch);
}

Batch Feeder::read(std::int64_t number) {
  const std::int64_t step = steps_.first_step + number / hosted_.size();
  const int shard = hosted_.begin + static_cast<int>(number % hosted_.size());
  std::vector<std::int64_t> samples;
  {
    const std::lock_guard lock(mutex_);
    samples = batches_.samples(step, shard);
  }
  if (samples.empty()) return {};
  return dataset_->batch(samples);
}

Batch Feeder::next() {
  auto batch = prefetcher_->next();
  LOCKSTEP_CHECK(batch.has_value(), "the feeder is asked for the steps it was made for");
  return std::move(*batch);
}

}  // namespace lockstep::train
