#include "plan/position.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>

namespace lockstep::plan {
namespace {

SamplerOptions sampler_of(const DataOptions& options) {
  return {.samples = options.samples,
          .seed = options.seed,
          .shuffle = options.shuffle,
          .remainder = options.remainder,
          .weights = options.weights};
}

void check_batch(const DataOptions& options) {
  if (options.shards < 1) {
    throw BadInput(fmt::format("{} shards: a job has at least 1", options.shards));
  }
  if (options.global_batch < 1 || options.global_batch % options.shards != 0) {
    throw BadInput(
        fmt::format("a global batch of {} cannot be split over {} shards: choose a multiple of {}",
                    options.global_batch, options.shards, options.shards));
  }
}

std::int64_t steps_in(std::int64_t entries, const DataOptions& options) {
  const std::int64_t full = entries / options.global_batch;
  const bool short_one = entries % options.global_batch != 0;
  return options.last_batch == LastBatch::kKeep && short_one ? full + 1 : full;
}

}  // namespace

int default_shards(std::int64_t global_batch) {
  int shards = 8;
  while (shards > 1 && (global_batch < shards || global_batch % shards != 0)) --shards;
  return shards;
}

Batches::Batches(const DataOptions& options) : options_(options) {
  check_batch(options);
  entries_per_epoch_ = epoch_entries(sampler_of(options), options.shards);
  steps_per_epoch_ = steps_in(entries_per_epoch_, options);
  if (steps_per_epoch_ == 0) {
    throw BadInput(
        fmt::format("{} samples do not fill one global batch of {}: keep the short last batch, or "
                    "choose a smaller one",
                    order_length(sampler_of(options)), options.global_batch));
  }
}

Position Batches::position(std::int64_t step) const {
  if (step < 0) throw BadInput(fmt::format("step {}: steps count from 0", step));
  const std::int64_t step_in_epoch = step % steps_per_epoch_;
  const std::int64_t first = step_in_epoch * options_.global_batch;
  return {.epoch = step / steps_per_epoch_,
          .step_in_epoch = step_in_epoch,
          .first_entry = first,
          .entries = std::min(options_.global_batch, entries_per_epoch_ - first)};
}

std::int64_t Batches::count(std::int64_t step, int shard) const {
  return shard_entries(position(step).entries, shard, options_.shards);
}

double Batches::weight(std::int64_t step, int shard) const {
  const std::int64_t full = options_.global_batch / options_.shards;
  return static_cast<double>(count(step, shard)) / static_cast<double>(full);
}

std::vector<std::int64_t> Batches::samples(std::int64_t step, int shard) {
  std::vector<std::int64_t> found = entries(step, shard);
  const EpochOrder& order = order_of(position(step).epoch);
  for (std::int64_t& entry : found) entry = order.sample_at(entry);
  return found;
}

std::vector<std::int64_t> Batches::entries(std::int64_t step, int shard) const {
  const Position at = position(step);
  const std::int64_t wanted = shard_entries(at.entries, shard, options_.shards);
  std::vector<std::int64_t> found;
  found.reserve(static_cast<std::size_t>(wanted));
  for (std::int64_t i = 0; i < wanted; ++i)
    found.push_back(at.first_entry + i * options_.shards + shard);
  return found;
}

const EpochOrder& Batches::order_of(std::int64_t epoch) {
  auto& slot = remembered_[static_cast<std::size_t>(epoch % 2)];
  if (!slot || slot->epoch != epoch) {
    slot.emplace(Remembered{epoch, EpochOrder(sampler_of(options_), epoch)});
  }
  return slot->order;
}

}  // namespace lockstep::plan
