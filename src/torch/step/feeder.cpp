#include "torch/step/feeder.h"

#include "base/check.h"
#include "torch/data/read.h"

namespace lockstep::steps {
namespace {

// On a GPU, of what a data set makes there itself.
constexpr std::chrono::minutes kLongestRead{5};

}  // namespace

Feeder::Feeder(DatasetPtr dataset, const plan::DataOptions& options, plan::ShardRange hosted,
               Span steps, const data::PrefetchOptions& prefetch, Device device)
    : upload_(device::upload_to(device)),
      dataset_(std::move(dataset)),
      hosted_(hosted),
      steps_(steps),
      batches_(options),
      apart_(prefetch.threads > 0) {
  const std::int64_t count = (steps.end_step - steps.first_step) * hosted.size();
  left_ = count;
  prefetcher_.emplace(
      0, count, [this](std::int64_t number) { return read_ahead(number); }, prefetch);
}

Batch Feeder::read_ahead(std::int64_t number) {
  const std::int64_t step = steps_.first_step + number / hosted_.size();
  const int shard = hosted_.begin + static_cast<int>(number % hosted_.size());
  const Batch batch = read(step, shard);
  if (!upload_) return batch;
  return device::ready_to_move(batch, apart_, Deadline::after(kLongestRead));
}

Batch Feeder::read(std::int64_t step, int shard) {
  std::vector<Sample> samples;
  {
    const std::lock_guard lock(mutex_);
    samples = samples_of(batches_.samples(step, shard), batches_.position(step).epoch,
                         batches_.options().seed);
  }
  return data::read(*dataset_, samples);
}

// Where one is on its way already, this one goes behind it, and both are waited for.
Batch Feeder::again(std::int64_t step, int shard) {
  const Batch batch = read(step, shard);
  if (!upload_) return batch;
  const Batch moved =
      upload_->move(device::ready_to_move(batch, false, Deadline::after(kLongestRead)));
  upload_->arrive();
  return moved;
}

Batch Feeder::next() {
  if (!upload_) return take();
  Batch batch = ahead_ ? std::move(*ahead_) : upload_->move(take());
  ahead_.reset();
  upload_->arrive();
  return batch;
}

void Feeder::look_ahead() {
  if (!upload_ || ahead_ || left_ == 0) return;
  ahead_ = upload_->move(take());
}

Batch Feeder::take() {
  --left_;
  auto batch = prefetcher_->next();
  LOCKSTEP_CHECK(batch.has_value(), "the feeder is asked for the steps it was made for");
  return std::move(*batch);
}

}  // namespace lockstep::steps
