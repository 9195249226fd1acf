#include "torch/replica/ledger.h"

#include <algorithm>

namespace lockstep::replica {

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

std::vector<std::size_t> Ledger::missing() const {
  std::vector<std::size_t> entries;
  for (std::size_t i = 0; i < marked_.size(); ++i) {
    if (!marked_[i]) entries.push_back(i);
  }
  return entries;
}

}  // namespace lockstep::replica
