#include "torch/replica/arrivals.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>

namespace lockstep::replica {

Arrivals::Arrivals(const Model& model, const ModelPlan& plan, MissingGradient missing)
    : model_(model), layout_(plan.layout), missing_(missing), ledger_(plan.layout, plan.buckets) {
  for (const NamedTensor& named : model_.parameters) {
    if (!named.tensor.requires_grad()) frozen_.push_back(named);
  }
  forget();
}

void Arrivals::forget() {
  reached_.assign(layout_.entries().size(), false);
}

void Arrivals::mark(std::size_t entry) {
  if (!ledger_.mark(entry)) {
    throw BadInput(fmt::format(
        "the gradient of {} arrived twice in one backward pass: an earlier pass was broken off "
        "(call zero_grad() after catching its error), or part of the model runs its own backward "
        "inside this one (for activation checkpointing use lockstep::checkpoint())",
        layout_.entries()[entry].name));
  }
  reached_[entry] = true;
}

void throw_frozen(const std::string& parameter) {
  throw BadInput(
      fmt::format("{} was frozen after data_parallel(): call data_parallel() again, which replaces "
                  "this replica, and make its optimizer again",
                  parameter));
}

void Arrivals::check_complete() const {
  for (const auto& [name, tensor] : frozen_) {
    if (!tensor.requires_grad()) continue;
    throw BadInput(fmt::format(
        "parameter {} was frozen at data_parallel() and requires gradients now: call "
        "data_parallel() again, which replaces this replica, and make its optimizer again",
        name));
  }
  if (missing_ != MissingGradient::kError) return;
  std::vector<std::string> names;
  for (std::size_t entry = reached_.size(); entry-- > 0;) {  // backwards: in registration order
    if (reached_[entry]) continue;
    const plan::Entry& missing = layout_.entries()[entry];
    if (!model_.trained[missing.registered].tensor.requires_grad()) throw_frozen(missing.name);
    names.push_back(missing.name);
  }
  if (names.empty()) return;
  throw BadInput(fmt::format(
      "no gradient for {}: the loss did not depend on it; use it in forward(), freeze it, or set "
      "missing_gradient = MissingGradient::kZero",
      fmt::join(names, ", ")));
}

void Arrivals::check_graph(const std::vector<bool>& absent) {
  if (graph_.empty()) {
    graph_ = reached_;
    for (std::size_t entry = 0; entry < absent.size(); ++entry)
      graph_[entry] = graph_[entry] && !absent[entry];
  }
  std::vector<std::string> changes;
  for (std::size_t entry = reached_.size(); entry-- > 0;) {
    if (reached_[entry] == graph_[entry]) continue;
    changes.push_back(fmt::format("{} has {} gradient now", layout_.entries()[entry].name,
                                  reached_[entry] ? "a" : "no"));
  }
  if (changes.empty()) return;
  throw BadInput(
      fmt::format("the graph is not that of the first synchronised backward(): {}. With "
                  "MissingGradient::kStatic it must not change; kZero allows that",
                  fmt::join(changes, ", ")));
}

void PassClock::begin() {
  began_ = Clock::now();
  times_ = {};
}

void PassClock::launched(bool travels, bool before_last_gradient) {
  if (times_.first_launch.count() == 0) times_.first_launch = now();
  if (!travels) return;
  ++times_.buckets;
  if (before_last_gradient) ++times_.launched_before_end;
}

void PassClock::end() {
  if (times_.last_gradient.count() == 0) last_gradient();  // not all gradients have arrived
  times_.end = now();
}

Ledger::Ledger(const plan::Layout& layout, const std::vector<plan::Bucket>& buckets)
    : bucket_of_(layout.entries().size()), marked_(layout.entries().size()) {
  entries_in_.reserve(buckets.size());
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    entries_in_.push_back(buckets[b].entries);
    std::fill_n(bucket_of_.begin() + static_cast<std::ptrdiff_t>(buckets[b].first_entry),
                buckets[b].entries, b);
  }
  begin();
}

void Ledger::begin() {
  waiting_ = entries_in_;
  std::fill(marked_.begin(), marked_.end(), false);
  arrived_ = 0;
  launched_ = 0;
}

bool Ledger::mark(std::size_t entry) {
  if (marked_.at(entry)) return false;
  marked_[entry] = true;
  ++arrived_;
  --waiting_[bucket_of_[entry]];
  return true;
}

std::optional<std::size_t> Ledger::next_ready() {
  if (launched_ == waiting_.size() || waiting_[launched_] > 0) return std::nullopt;
  return launched_++;
}

}  // namespace lockstep::replica
