// Which gradients of a backward pass have arrived, and which buckets may therefore go to the wire.
//
// Buckets are launched strictly in layout order, on every worker, whatever the order in which
// gradients arrive: workers must agree on it, and only the layout is the same for all.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "plan/buckets.h"
#include "plan/layout.h"

namespace lockstep::replica {

// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none; an index out of range is a bug of the caller.
// Ownership: a value.
class Ledger {
 public:
  Ledger(const plan::Layout& layout, const std::vector<plan::Bucket>& buckets);

  void begin();

  // A gradient is there. False if it was before.
  bool mark(std::size_t entry);

  bool has(std::size_t entry) const { return marked_.at(entry); }

  // The next bucket in order if all of its gradients are there; each is given out once.
  std::optional<std::size_t> next_ready();

  bool complete() const { return arrived_ == marked_.size(); }

  // The entries whose gradients have not come.
  std::vector<std::size_t> missing() const;

 private:
  std::vector<std::size_t> bucket_of_;   // by entry
  std::vector<std::size_t> entries_in_;  // by bucket
  std::vector<std::size_t> waiting_;     // by bucket: entries still to come
  std::vector<bool> marked_;             // by entry
  std::size_t arrived_ = 0;
  std::size_t launched_ = 0;
};

}  // namespace lockstep::replica
