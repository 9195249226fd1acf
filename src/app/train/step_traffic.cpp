#include "app/train/step_traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "plan/traffic.h"

namespace lockstep::app {
namespace {

constexpr double kMuch = 2;  // times ring's

std::size_t busiest_of_direct(int shards, int workers, std::span<const plan::Bucket> buckets) {
  const plan::Reduction reduction = plan::plan_reduction(shards, workers);
  std::vector<plan::Traffic> sums(static_cast<std::size_t>(workers));
  for (const plan::Bucket& bucket : buckets) {
    const auto traffic = plan::direct_traffic(reduction, bucket.count(), size_of(bucket.dtype));
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
      sums[rank].sent += traffic[rank].sent;
      sums[rank].received += traffic[rank].received;
    }
  }
  std::size_t most = 0;
  for (const plan::Traffic& sum : sums) most = std::max({most, sum.sent, sum.received});
  return most;
}

}  // namespace

StepTraffic traffic_of(Algorithm algorithm, int shards, int workers,
                       std::span<const plan::Bucket> buckets) {
  StepTraffic traffic;
  if (workers == 1) {
    traffic.bytes = 0;
    return traffic;
  }
  double ring = 0;
  for (const plan::Bucket& bucket : buckets) ring += plan::ring_bytes(bucket.bytes, workers);
  switch (algorithm) {
    case Algorithm::kRing:
    case Algorithm::kHalvingDoubling:
      traffic.bytes = static_cast<std::size_t>(std::llround(ring));
      traffic.times_ring = 1;
      break;
    case Algorithm::kAutomatic:
    case Algorithm::kDirect:
      traffic.bytes = busiest_of_direct(shards, workers, buckets);
      if (ring > 0) traffic.times_ring = static_cast<double>(*traffic.bytes) / ring;
      break;
    case Algorithm::kTree:
    case Algorithm::kNative:
      break;
  }
  return traffic;
}

std::string spoken(const StepTraffic& traffic, int shards, int workers) {
  if (traffic.in_place) return "in place: no gradient is sent";
  if (!traffic.bytes || !traffic.times_ring) return {};
  const double megabytes = static_cast<double>(*traffic.bytes) / 1e6;
  const std::string moved =
      fmt::format("{:.1f} MB of gradients a step for the busiest worker", megabytes);
  if (*traffic.times_ring <= kMuch)
    return fmt::format("{}, {:.2f} times ring's", moved, *traffic.times_ring);
  return fmt::format("{}: S = {} on {} workers moves {:.1f} times ring's bytes", moved, shards,
                     workers, *traffic.times_ring);
}

}  // namespace lockstep::app
