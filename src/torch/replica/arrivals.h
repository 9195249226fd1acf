// Which gradients have come: in the backward pass under way, and in all passes that count together.
#pragma once

#include <lockstep/data_parallel.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "plan/buckets.h"
#include "plan/layout.h"
#include "torch/replica/model.h"

namespace lockstep::replica {

// Which gradients of one backward pass have come, and which buckets may therefore go to the wire.
//
// Buckets are launched strictly in layout order, on every worker, whatever the order in which gradients arrive: workers
// must agree on it, and only the layout is the same for all.
//
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

// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   BadInput, naming the parameters.
// Ownership: borrows the model and the plan.
class Arrivals {
 public:
  Arrivals(const Model& model, const ModelPlan& plan, MissingGradient missing);

  void begin_pass() { ledger_.begin(); }
  void forget();  // all passes before

  // A gradient is there. BadInput if it was before in this pass.
  void mark(std::size_t entry);
  bool has(std::size_t entry) const { return ledger_.has(entry); }
  bool complete() const { return ledger_.complete(); }

  // The next bucket, if all of its gradients are there; each is given out once.
  std::optional<std::size_t> next_ready() { return ledger_.next_ready(); }

  // BadInput for parameters without a gradient, where that is an error, and for one that was frozen and is no more.
  void check_complete() const;

  const std::vector<bool>& reached() const { return reached_; }  // by entry: some pass had one

 private:
  const Model& model_;
  const plan::Layout& layout_;
  std::vector<NamedTensor> frozen_;  // parameters that are not trained
  MissingGradient missing_;
  Ledger ledger_;
  std::vector<bool> reached_;
};

// When the parts of a pass happen, for Replica::last_backward(): how much of the reduction backward has hidden.
class PassClock {
 public:
  void begin();
  void launched(bool travels, bool before_last_gradient);
  void last_gradient() { times_.last_gradient = now(); }
  void end();

  const BackwardTimes& times() const { return times_; }  // of the last pass that was reduced

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::nanoseconds now() const { return Clock::now() - began_; }

  Clock::time_point began_;
  BackwardTimes times_;
};

[[noreturn]] void throw_frozen(const std::string& parameter);

}  // namespace lockstep::replica
