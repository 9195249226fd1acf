#include "app/train/step_traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "plan/hosts.h"

namespace lockstep::app {
namespace {

constexpr double kMuch = 2;  // times ring's

// What the busiest one sends or receives, if `traffic` says it of one bucket for all workers or hosts.
template <typename TrafficOf>
std::size_t busiest(std::span<const plan::Bucket> buckets, const TrafficOf& traffic) {
  std::vector<plan::Traffic> sums;
  for (const plan::Bucket& bucket : buckets) {
    const std::vector<plan::Traffic> all = traffic(bucket.count(), size_of(bucket.dtype));
    sums.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      sums[i].sent += all[i].sent;
      sums[i].received += all[i].received;
    }
  }
  std::size_t most = 0;
  for (const plan::Traffic& sum : sums) most = std::max({most, sum.sent, sum.received});
  return most;
}

double ring_of(std::span<const plan::Bucket> buckets, int members) {
  double bytes = 0;
  for (const plan::Bucket& bucket : buckets) bytes += plan::ring_bytes(bucket.bytes, members);
  return bytes;
}

}  // namespace

StepTraffic traffic_of(Algorithm algorithm, int shards, int workers,
                       std::span<const plan::Bucket> buckets, std::span<const int> hosts) {
  StepTraffic traffic;
  if (workers == 1) {
    traffic.bytes = 0;
    return traffic;
  }
  const plan::Reduction reduction = plan::plan_reduction(shards, workers);
  double ring = ring_of(buckets, workers);
  switch (algorithm) {
    case Algorithm::kRing:
    case Algorithm::kHalvingDoubling:
      traffic.bytes = static_cast<std::size_t>(std::llround(ring));
      traffic.times_ring = 1;
      break;
    case Algorithm::kAutomatic:
    case Algorithm::kDirect:
      traffic.bytes = busiest(buckets, [&](std::size_t count, std::size_t element) {
        return plan::direct_traffic(reduction, count, element);
      });
      if (ring > 0) traffic.times_ring = static_cast<double>(*traffic.bytes) / ring;
      break;
    case Algorithm::kTwoLevels: {
      const auto levels = plan::plan_two_levels(reduction, {hosts.begin(), hosts.end()});
      traffic.bytes = busiest(buckets, [&](std::size_t count, std::size_t element) {
        return plan::two_level_traffic(levels, count, element);
      });
      ring = ring_of(buckets, static_cast<int>(levels.hosts.size()));
      if (ring > 0) traffic.times_ring = static_cast<double>(*traffic.bytes) / ring;
      traffic.of_host = true;
      break;
    }
    case Algorithm::kTree:
    case Algorithm::kNative:
      break;
  }
  return traffic;
}

std::string spoken(const StepTraffic& traffic, const TrafficOf& of) {
  if (traffic.in_place)
    return fmt::format("in place: no {} is sent", of.rounds ? "weight" : "gradient");
  if (traffic.of_task) {
    return fmt::format("{:.1f} MB for each shard of a step: weights come, a gradient goes",
                       static_cast<double>(*traffic.of_task) / 1e6);
  }
  if (!traffic.bytes || !traffic.times_ring) return {};
  const double megabytes = static_cast<double>(*traffic.bytes) / 1e6;
  const std::string moved = fmt::format("{:.1f} MB of {} for the busiest {}", megabytes,
                                        of.rounds ? "weights a round" : "gradients a step",
                                        traffic.of_host ? "host" : "worker");
  if (*traffic.times_ring <= kMuch)
    return fmt::format("{}, {:.2f} times ring's", moved, *traffic.times_ring);
  return fmt::format("{}: S = {} on {} workers moves {:.1f} times ring's bytes", moved, of.shards,
                     of.workers, *traffic.times_ring);
}

}  // namespace lockstep::app
