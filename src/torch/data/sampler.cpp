#include <lockstep/data.h>

#include <algorithm>

#include "plan/sampler.h"
#include "torch/data/uneven.h"

namespace lockstep {

DistributedSampler::DistributedSampler(std::int64_t samples, const World& world, std::uint64_t seed,
                                       bool shuffle, Uneven uneven)
    : share_{samples, world.rank(), world.size(), seed, shuffle, uneven} {
  begin_epoch();
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  next_epoch_ = epoch;
}

void DistributedSampler::begin_epoch() {
  plan::SamplerOptions options;
  options.samples = share_.samples;
  options.seed = share_.seed;
  options.shuffle = share_.shuffle;
  options.remainder = data::remainder_of(share_.uneven);
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
