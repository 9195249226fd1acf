#include "torch/step/phase_result.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <limits>
#include <span>

#include "plan/tree.h"

namespace lockstep::steps {
namespace {

// How many workers were told to stop, reported an unknown metric, know of newcomers, want a checkpoint, have written one.
constexpr std::size_t kFlags = 5;

}  // namespace

PhaseResult::PhaseResult(About about, std::function<void(PhaseResult&)> bring)
    : about_(std::move(about)), bring_(std::move(bring)) {}

std::size_t PhaseResult::first_of_metric(std::size_t number) const {
  const auto shards = static_cast<std::size_t>(about_.shards);
  return shards + about_.models * workers_ + kFlags + number * 2 * shards;
}

std::size_t PhaseResult::first_of_squares(std::size_t model) const {
  return first_of_metric(about_.names.size()) + model * static_cast<std::size_t>(about_.shards);
}

// One worker has each number, and the others have 0 there: the all-reduce moves numbers, and rounds nothing. They are
// added later, in the order of the tree. Only the flags are counts.
void PhaseResult::start(Comm& channel, const Local& local) {
  const auto shards = static_cast<std::size_t>(about_.shards);
  workers_ = static_cast<std::size_t>(channel.size());
  numbers_.assign(first_of_squares(about_.measured ? about_.measured->of_batch.size() : 0), 0);
  for (const auto& [shard, loss] : local.weighted_losses)
    numbers_[static_cast<std::size_t>(shard)] = loss;
  for (std::size_t model = 0; model < local.digests.size(); ++model)
    numbers_[shards + model * workers_ + static_cast<std::size_t>(channel.rank())] =
        local.digests[model];
  double* const flags = numbers_.data() + shards + about_.models * workers_;
  flags[0] = local.asks.stop ? 1 : 0;
  flags[2] = local.asks.newcomers ? 1 : 0;
  flags[3] = local.asks.checkpoint ? 1 : 0;
  flags[4] = local.asks.written ? 1 : 0;
  for (const auto& [shard, reports] : local.reports) {
    for (const auto& [name, report] : reports) {
      const auto found = std::lower_bound(about_.names.begin(), about_.names.end(), name);
      if (found == about_.names.end() || *found != name) {
        flags[1] = 1;
        continue;
      }
      const auto number = static_cast<std::size_t>(found - about_.names.begin());
      double* const at = numbers_.data() + first_of_metric(number) + shard;
      at[0] = report.sum;
      at[shards] = report.weight;
    }
  }
  for (const auto& [shard, squares] : local.squares) {
    for (std::size_t model = 0; model < squares.size() && about_.measured; ++model)
      numbers_[first_of_squares(model) + static_cast<std::size_t>(shard)] = squares[model];
  }
  work_ = channel.all_reduce({numbers_.data(), numbers_.size(), DType::kFloat64});
  started_ = true;
}

void PhaseResult::wait() {
  if (done_) return;
  if (!started_) bring_(*this);
  work_.wait();
  done_ = true;
  if (about_.noise) record_noise();
}

void PhaseResult::rescue(const std::vector<double>& losses) {
  if (done_) return;
  work_ = {};
  workers_ = 0;
  about_.measured.reset();
  numbers_.assign(first_of_squares(0), std::numeric_limits<double>::quiet_NaN());
  std::copy(losses.begin(), losses.end(), numbers_.begin());
  std::fill_n(numbers_.begin() + about_.shards, kFlags, 0);
  started_ = done_ = rescued_ = true;
  if (about_.noise) record_noise();
}

void PhaseResult::drop_asks() {
  double* const flags = numbers_.data() + first_of_metric(0) - kFlags;
  flags[0] = 0;
  std::fill(flags + 2, flags + kFlags, 0);
}

void PhaseResult::record_noise() {
  const std::span<const double> all(numbers_);
  for (std::size_t model = 0; model < about_.noise->size(); ++model) {
    plan::NoiseSums& sums = (*about_.noise)[model];
    if (about_.measured) {
      const auto shards = static_cast<std::size_t>(about_.shards);
      sums.add(plan::estimate_noise({.of_shards = all.subspan(first_of_squares(model), shards),
                                     .of_batch = about_.measured->of_batch[model],
                                     .samples = about_.measured->samples}));
    }
    noise_.push_back(sums.average());
  }
}

double PhaseResult::loss() const {
  const std::span<const double> numbers(numbers_);
  return plan::tree_sum(numbers.first(static_cast<std::size_t>(about_.shards))) /
         about_.total_weight;
}

std::vector<double> PhaseResult::digests(std::size_t model) const {
  const double* const first = numbers_.data() + about_.shards + model * workers_;
  return {first, first + workers_};
}

PhaseResult::Asks PhaseResult::asks() const {
  const double* const flags = numbers_.data() + first_of_metric(0) - kFlags;
  return {flags[0] > 0, flags[2] > 0, flags[3] > 0, flags[4] > 0};
}

bool PhaseResult::unknown_metric() const {
  return numbers_[first_of_metric(0) - kFlags + 1] > 0;
}

double PhaseResult::metric(const std::string& name) const {
  const auto found = std::lower_bound(about_.names.begin(), about_.names.end(), name);
  if (found == about_.names.end() || *found != name) {
    // Workers that begin again have not agreed on names yet.
    if (rescued_) return std::numeric_limits<double>::quiet_NaN();
    throw BadInput(
        fmt::format("nobody has reported a metric {}: its name is one that the loss "
                    "gives to Shard::report()",
                    name));
  }
  const auto shards = static_cast<std::size_t>(about_.shards);
  const std::span<const double> all(numbers_);
  const std::size_t first = first_of_metric(static_cast<std::size_t>(found - about_.names.begin()));
  return plan::tree_sum(all.subspan(first, shards)) /
         plan::tree_sum(all.subspan(first + shards, shards));
}

}  // namespace lockstep::steps
