#include "plan/rounds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace lockstep {
namespace {

constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;
constexpr double kMostRate = 1e6;
constexpr int kMostBackups = 1 << 20;
constexpr int kMostFragments = 1 << 16;
constexpr std::int64_t kMostAsynchronousSteps = 1 << 20;  // the order of a round is kept in memory

void check_asynchronous(const LocalSteps& local) {
  const Asynchronous& rule = *local.asynchronous;
  if (local.stages.empty()) {
    throw BadInput(
        "asynchronous steps without rounds: LocalSteps::stale() and with_backups() say how long a "
        "round is; for 0 they are the synchronous step, without asynchronous");
  }
  if (rule.backups < 0 || rule.backups > kMostBackups)
    throw BadInput(fmt::format("{} backup shards: give 0 to {}", rule.backups, kMostBackups));
  if (rule.backups > 0 &&
      (rule.staleness != 0 || rule.slows_if_stale || rule.delay_compensation != 0))
    throw BadInput(
        "steps with backups have no stale gradients: set staleness to 0, and leave its options "
        "out, as LocalSteps::with_backups() does");
  if (rule.backups == 0 && rule.staleness < 1 && rule.staleness != Asynchronous::kUnbounded) {
    throw BadInput(fmt::format(
        "a staleness of {}: asynchronous steps want 1 or more, or no bound; 0 is the synchronous "
        "step, without asynchronous",
        rule.staleness));
  }
  if (!(rule.delay_compensation >= 0 && std::isfinite(rule.delay_compensation)))
    throw BadInput(fmt::format("a delay compensation of {:g}: 0 or more", rule.delay_compensation));
  if (local.outer_lr != 1 || local.outer_momentum != 0)
    throw BadInput("asynchronous steps have no outer update: workers share weights");
  if (local.state != LocalState::kKept)
    throw BadInput("asynchronous steps have one state of the optimizer, which all shards share");
  for (const auto& [from, steps] : local.stages) {
    if (steps > kMostAsynchronousSteps)
      throw BadInput(fmt::format("an asynchronous round of {} steps: at most {}", steps,
                                 kMostAsynchronousSteps));
  }
}

void check_streaming(const LocalSteps& local) {
  const auto [fragments, keep] = *local.streaming;
  if (fragments < 2 || fragments > kMostFragments)
    throw BadInput(fmt::format("{} fragments of a model: 2 or more, or none", fragments));
  if (!(keep >= 0 && keep < 1)) {
    throw BadInput(
        fmt::format("a shard that keeps {:g} of its own weights: 0 or more, and below 1", keep));
  }
  if (local.asynchronous)
    throw BadInput("asynchronous steps have no fragments: workers share weights");
  if (local.state != LocalState::kKept)
    throw BadInput("with fragments each shard keeps its weights and the optimizer's state");
}

void check(const LocalSteps& local) {
  const auto& stages = local.stages;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (stages[i].steps < 1 || stages[i].steps > kMostSteps) {
      throw BadInput(
          fmt::format("a round of {} steps: give 1 to {}; for a step in which all workers meet "
                      "leave the option out",
                      stages[i].steps, kMostSteps));
    }
    if (i == 0 ? stages[i].from != 0 : stages[i].from <= stages[i - 1].from) {
      throw BadInput(
          "the stages of local steps begin with step 0, and each one later than the one before it");
    }
  }
  const bool rate = local.outer_lr > 0 && local.outer_lr <= kMostRate;
  if (!rate || !(local.outer_momentum >= 0 && local.outer_momentum < 1)) {
    throw BadInput(
        fmt::format("the outer update of local steps has learning rate {:g} and momentum {:g}: the "
                    "rate is above 0, the "
                    "momentum 0 or more and below 1",
                    local.outer_lr, local.outer_momentum));
  }
  if (local.outer_nesterov && local.outer_momentum == 0)
    throw BadInput("the outer update of local steps has no momentum, which Nesterov needs");
  if (local.asynchronous) check_asynchronous(local);
  if (local.streaming) check_streaming(local);
}

const char* name(LocalState state) {
  switch (state) {
    case LocalState::kAveraged:
      return "averaged";
    case LocalState::kReset:
      return "reset";
    case LocalState::kKept:
      break;
  }
  return "kept";
}

}  // namespace

LocalSteps LocalSteps::sgd(std::int64_t steps) {
  return {.stages = {{0, steps}}};
}
LocalSteps LocalSteps::post_local_sgd(std::int64_t from, std::int64_t steps) {
  return {.stages = {{0, 1}, {from, steps}}};
}
LocalSteps LocalSteps::diloco(std::int64_t steps) {
  return {.stages = {{0, steps}}, .outer_lr = 0.7, .outer_momentum = 0.9, .outer_nesterov = true};
}

LocalSteps LocalSteps::streaming_diloco(std::int64_t steps, int fragments) {
  if (fragments < 2 || steps < fragments || steps % fragments != 0) {
    throw BadInput(
        fmt::format("{} fragments, each exchanged every {} steps: give 2 or more, and a number of "
                    "steps that they divide",
                    fragments, steps));
  }
  LocalSteps local = diloco(steps / fragments);
  local.streaming.emplace().fragments = fragments;
  return local;
}

LocalSteps LocalSteps::stale(std::int64_t staleness, std::int64_t steps) {
  if (staleness == 0) return {};
  LocalSteps local{.stages = {{0, steps}}};
  local.asynchronous.emplace().staleness = staleness;
  return local;
}

LocalSteps LocalSteps::with_backups(int backups, std::int64_t steps) {
  LocalSteps local = stale(backups == 0 ? 0 : 1, steps);
  if (local.asynchronous) *local.asynchronous = {.staleness = 0, .backups = backups};
  return local;
}

std::string to_string(const LocalSteps& local) {
  check(local);
  std::vector<std::string> stages;
  for (const auto& [from, steps] : local.stages)
    stages.push_back(
        fmt::format("rounds of {} step{} from step {}", steps, steps == 1 ? "" : "s", from));
  if (local.asynchronous) {
    const Asynchronous& rule = *local.asynchronous;
    if (rule.backups > 0)
      return fmt::format("all shards but the last {}, {}", rule.backups, fmt::join(stages, ", "));
    return fmt::format("asynchronous, {}, {}{}{}", fmt::join(stages, ", "),
                       rule.staleness == Asynchronous::kUnbounded
                           ? "no bound"
                           : fmt::format("staleness {}", rule.staleness),
                       rule.slows_if_stale ? ", slower if stale" : "",
                       rule.delay_compensation == 0
                           ? ""
                           : fmt::format(", delay compensation {}", rule.delay_compensation));
  }
  const std::string streaming = local.streaming
                                    ? fmt::format(", {} fragments in turn, keep {}",
                                                  local.streaming->fragments, local.streaming->keep)
                                    : "";
  return fmt::format("{}, state {}, outer lr {} momentum {}{}{}", fmt::join(stages, ", "),
                     name(local.state), local.outer_lr, local.outer_momentum,
                     local.outer_nesterov ? " nesterov" : "", streaming);
}

}  // namespace lockstep

namespace lockstep::plan {

Rounds::Rounds(const LocalSteps& local) : stages_(local.stages) {
  check(local);
  if (stages_.empty()) stages_.push_back({0, 1});
  if (local.streaming) fragments_ = local.streaming->fragments;
}

std::size_t Rounds::stage_of(std::int64_t step) const {
  const auto next = std::upper_bound(
      stages_.begin(), stages_.end(), step,
      [](std::int64_t at, const LocalSteps::Stage& stage) { return at < stage.from; });
  return static_cast<std::size_t>(next - stages_.begin()) - 1;
}

std::int64_t Rounds::end(std::int64_t step) const {
  const std::size_t stage = stage_of(step);
  const auto& [from, steps] = stages_[stage];
  const std::int64_t end = from + ((step - from) / steps + 1) * steps;
  return stage + 1 < stages_.size() ? std::min(end, stages_[stage + 1].from) : end;
}

int Rounds::fragment(std::int64_t step) const {
  const auto& [from, steps] = stages_[stage_of(step)];
  return static_cast<int>((step - from) / steps % fragments_);
}

std::int64_t Rounds::exchanges(std::int64_t steps) const {
  std::int64_t count = 0;
  for (std::size_t stage = 0; stage < stages_.size() && stages_[stage].from < steps; ++stage) {
    const bool is_last = stage + 1 == stages_.size();
    const std::int64_t end = is_last ? steps : std::min(steps, stages_[stage + 1].from);
    const std::int64_t rounds = 1 + (end - stages_[stage].from - 1) / stages_[stage].steps;
    count += 1 + (rounds - 1) / fragments_;
  }
  return count;
}

// A stretch: the steps of the loop that are in one stage. Its first and its last round may be cut; the others have the length of
// the stage.
ShardStep Rounds::batch(std::int64_t number, StepRange loop, ShardRange hosted) const {
  const std::int64_t shards = hosted.size();
  const auto in_round = [&](StepRange round, std::int64_t rest) {
    return ShardStep{round.first + rest % round.size(),
                     hosted.begin + static_cast<int>(rest / round.size())};
  };
  StepRange stretch = loop;
  for (std::size_t stage = stage_of(loop.first);; ++stage) {
    stretch.end =
        stage + 1 < stages_.size() ? std::min(loop.end, stages_[stage + 1].from) : loop.end;
    if (number < stretch.size() * shards || stretch.end == loop.end) break;
    number -= stretch.size() * shards;
    stretch.first = stretch.end;
  }
  const StepRange first{stretch.first, std::min(end(stretch.first), stretch.end)};
  if (number < first.size() * shards) return in_round(first, number);
  number -= first.size() * shards;
  const std::int64_t whole = stages_[stage_of(stretch.first)].steps;
  const std::int64_t round = first.end + number / (whole * shards) * whole;
  return in_round({round, std::min(round + whole, stretch.end)}, number % (whole * shards));
}

// A group ends with the item that brings it to its share, or earlier if each of the others would not get an item of those with
// bytes.
std::vector<std::size_t> fragment_ends(std::span<const std::size_t> bytes, int fragments) {
  const auto count = static_cast<std::size_t>(fragments);
  std::size_t all = 0;
  std::size_t filled = 0;  // items with bytes that are left
  for (const std::size_t of_item : bytes) {
    all += of_item;
    filled += of_item > 0 ? 1 : 0;
  }
  std::vector<std::size_t> ends;
  std::size_t sum = 0;
  std::size_t in_group = 0;  // items with bytes
  for (std::size_t i = 0; i < bytes.size() && ends.size() + 1 < count; ++i) {
    sum += bytes[i];
    in_group += bytes[i] > 0 ? 1 : 0;
    filled -= bytes[i] > 0 ? 1 : 0;
    const std::size_t groups_left = count - ends.size() - 1;
    if (in_group == 0 || (sum * count < all * (ends.size() + 1) && filled > groups_left)) continue;
    ends.push_back(i + 1);
    in_group = 0;
  }
  ends.resize(count, bytes.size());
  return ends;
}

}  // namespace lockstep::plan
