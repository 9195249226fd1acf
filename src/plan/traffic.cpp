#include "plan/traffic.h"

#include <algorithm>

namespace lockstep::plan {
namespace {

constexpr std::size_t kShortBytes = 4096;  // up to here a round trip costs more than the bytes
constexpr std::size_t kLineBytes = 64;

}  // namespace

std::vector<std::size_t> even_bounds(std::size_t count, int workers, std::size_t granule) {
  const std::size_t units = (count + granule - 1) / granule;
  const auto owners = static_cast<std::size_t>(workers);
  std::vector<std::size_t> bounds;
  bounds.reserve(owners + 1);
  bounds.push_back(0);
  for (std::size_t worker = 0; worker < owners; ++worker) {
    const std::size_t share = units / owners + (worker < units % owners ? 1 : 0);
    bounds.push_back(std::min(count, bounds.back() + share * granule));
  }
  return bounds;
}

std::size_t line_elements(std::size_t element_bytes) {
  return kLineBytes / element_bytes;
}

DirectCut direct_cut(std::size_t count, std::size_t element_bytes, int workers) {
  if (count * element_bytes <= kShortBytes) return {true, {}};
  return {false, even_bounds(count, workers, line_elements(element_bytes))};
}

std::vector<Traffic> direct_traffic(const Reduction& plan, std::size_t count,
                                    std::size_t element_bytes) {
  const DirectCut cut = direct_cut(count, element_bytes, plan.workers);
  const std::size_t whole = count * element_bytes;
  const auto others = static_cast<std::size_t>(plan.workers - 1);
  std::vector<Traffic> traffic;
  for (int worker = 0; worker < plan.workers; ++worker) {
    const auto held = static_cast<std::size_t>(plan.count_of(worker));
    const std::size_t missing = plan.operands.size() - held;
    if (cut.everyone_owns_all) {
      traffic.push_back({others * held * whole, missing * whole});
      continue;
    }
    const auto rank = static_cast<std::size_t>(worker);
    const std::size_t own = (cut.bounds[rank + 1] - cut.bounds[rank]) * element_bytes;
    traffic.push_back({held * (whole - own) + others * own, missing * own + (whole - own)});
  }
  return traffic;
}

double ring_bytes(std::size_t bytes, int workers) {
  return 2.0 * (workers - 1) / workers * static_cast<double>(bytes);
}

}  // namespace lockstep::plan
