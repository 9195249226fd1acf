#include "plan/sampler.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <numeric>
#include <random>

#include "base/check.h"

namespace lockstep::plan {
namespace {

// More than any data set has, and so few that sums of counts do not overflow and a double holds
// every count.
constexpr std::int64_t kMostSamples = std::int64_t{1} << 53;

void check_shuffle(std::int64_t samples) {
  if (samples > kMostShuffledSamples) {
    throw BadInput(
        fmt::format("cannot shuffle {} samples, only up to {}: switch shuffling off, or make one "
                    "sample of several",
                    samples, kMostShuffledSamples));
  }
}

void check_samples(const SamplerOptions& options) {
  if (options.samples < 1 || options.samples > kMostSamples) {
    throw BadInput(
        fmt::format("a data set of {} samples cannot be visited: check its path and its size",
                    options.samples));
  }
  if (options.weights) {
    if (options.weights->samples() == options.samples) return;
    throw BadInput(fmt::format("{} weights for {} samples: give each sample one",
                               options.weights->samples(), options.samples));
  }
  if (options.shuffle) check_shuffle(options.samples);
}

void check_shard(int shard, int shards) {
  if (shards < 1) throw BadInput(fmt::format("{} shards: a job has at least 1", shards));
  if (shard < 0 || shard >= shards) {
    throw BadInput(
        fmt::format("there is no shard {}: shards are numbered 0 to {}", shard, shards - 1));
  }
}

}  // namespace

std::vector<std::uint32_t> random_permutation(std::int64_t n, std::uint64_t seed) {
  LOCKSTEP_CHECK(n >= 0, "a permutation has no negative length");
  check_shuffle(n);
  std::vector<std::uint32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0U);
  std::mt19937 generator(static_cast<std::uint32_t>(seed));
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    std::swap(order[i], order[i + generator() % (order.size() - i)]);
  }
  return order;
}

std::int64_t order_length(const SamplerOptions& options) {
  check_samples(options);
  return options.weights ? options.weights->draws() : options.samples;
}

EpochOrder::EpochOrder(const SamplerOptions& options, std::int64_t epoch)
    : length_(order_length(options)) {
  if (epoch < 0) throw BadInput(fmt::format("epoch {}: epochs count from 0", epoch));
  const WeightedDraws* const weights = options.weights.get();
  if (weights == nullptr && options.shuffle) {
    permutation_ = random_permutation(length_, options.seed + static_cast<std::uint64_t>(epoch));
  } else if (weights != nullptr && weights->replacement() == Replacement::kWithout) {
    permutation_ = weights->chosen(options.seed, epoch);
  } else if (weights != nullptr) {
    draws_ = {options.weights, options.seed, epoch};
  }
}

std::int64_t EpochOrder::sample_at(std::int64_t position) const {
  LOCKSTEP_CHECK(position >= 0, "positions of an epoch count from 0");
  if (draws_.weights) return draws_.weights->drawn(draws_.seed, draws_.epoch, position);
  const std::int64_t wrapped = position % length_;
  return permutation_.empty() ? wrapped : permutation_[static_cast<std::size_t>(wrapped)];
}

std::int64_t epoch_entries(const SamplerOptions& options, int shards) {
  const std::int64_t length = order_length(options);
  check_shard(0, shards);
  const std::int64_t each = length / shards;
  const std::int64_t left = length % shards;
  switch (options.remainder) {
    case Remainder::kKeep:
      return length;
    case Remainder::kPad:
      return (each + (left > 0 ? 1 : 0)) * shards;
    case Remainder::kDrop:
      return each * shards;
  }
  throw BadInput("a remainder is kept, padded or dropped: set one of Remainder's values");
}

std::int64_t shard_entries(std::int64_t entries, int shard, int shards) {
  check_shard(shard, shards);
  return entries <= shard ? 0 : (entries - shard - 1) / shards + 1;
}

std::vector<std::int64_t> shard_samples(const SamplerOptions& options, std::int64_t epoch,
                                        int shard, int shards) {
  const std::int64_t count = shard_entries(epoch_entries(options, shards), shard, shards);
  const EpochOrder order(options, epoch);
  std::vector<std::int64_t> samples;
  samples.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) samples.push_back(order.sample_at(i * shards + shard));
  return samples;
}

std::vector<std::int64_t> evaluation_samples(std::int64_t samples, int shard, int shards) {
  const SamplerOptions as_it_stands{
      .samples = samples, .seed = 0, .shuffle = false, .remainder = Remainder::kKeep};
  return shard_samples(as_it_stands, 0, shard, shards);
}

}  // namespace lockstep::plan
