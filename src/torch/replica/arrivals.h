// Which gradients have arrived: in the backward pass under way, and in the passes since the last
// reduction.
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

// Which gradients of one backward pass have arrived, and which bucket may be sent next.
//
// Buckets go strictly in layout order, whatever the order in which gradients arrive. Workers must
// launch collectives in the same order, and only the layout is the same on all of them.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   none; an index out of range is a bug of the caller.
// Ownership: a value.
class Ledger {
 public:
  Ledger(const plan::Layout& layout, const std::vector<plan::Bucket>& buckets);

  void begin();

  // A gradient has arrived. False if it had arrived before in this pass.
  bool mark(std::size_t entry);

  bool has(std::size_t entry) const { return marked_.at(entry); }

  // The next bucket in layout order, if all of its gradients have arrived. Each is returned once.
  std::optional<std::size_t> next_ready();

  bool complete() const { return arrived_ == marked_.size(); }

 private:
  std::vector<std::size_t> bucket_of_;   // by entry
  std::vector<std::size_t> entries_in_;  // by bucket
  std::vector<std::size_t> waiting_;     // by bucket: entries still to come
  std::vector<bool> marked_;             // by entry
  std::size_t arrived_ = 0;
  std::size_t launched_ = 0;
};

// The ledger of a replica's passes, and what it takes for an error. Owned by a Pass.
//
// Threads:   one caller at a time.
// Blocking:  never.
// Failure:   BadInput, naming the parameters.
// Ownership: borrows the model and the plan.
class Arrivals {
 public:
  Arrivals(const Model& model, const ModelPlan& plan, MissingGradient missing);

  void begin_pass() { ledger_.begin(); }
  void forget();  // all passes so far: reached() is false for every entry

  // A gradient has arrived. BadInput if it had arrived before in this pass.
  void mark(std::size_t entry);
  bool has(std::size_t entry) const { return ledger_.has(entry); }
  bool complete() const { return ledger_.complete(); }

  std::optional<std::size_t> next_ready() { return ledger_.next_ready(); }

  // BadInput for parameters without a gradient, if the option `missing_gradient` calls that an
  // error. BadInput also for a parameter that was frozen at first and is trained now: it is in no
  // bucket.
  void check_complete() const;

  // By entry: whether a gradient arrived since forget(), in this pass or an earlier one.
  const std::vector<bool>& reached() const { return reached_; }

  // For MissingGradient::kStatic, at the end of a synchronised pass. The first time it notes which
  // gradients have arrived. Later it throws BadInput if these are others. `absent`: those that no
  // worker had in the first pass of all; empty: there was none.
  void check_graph(const std::vector<bool>& absent);

 private:
  const Model& model_;
  const plan::Layout& layout_;
  std::vector<NamedTensor> frozen_;  // parameters that were not trained at first
  MissingGradient missing_;
  Ledger ledger_;
  std::vector<bool> reached_;
  std::vector<bool> graph_;  // what check_graph() has noted
};

// Takes the times of a pass, for Replica::last_backward(): they tell how much of the reduction was
// hidden behind backward. Owned by a Pass.
class PassClock {
 public:
  void begin();
  // `travels`: other workers take part. Buckets that do not travel are not counted.
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

// BadInput for a parameter that was frozen after data_parallel().
[[noreturn]] void throw_frozen(const std::string& parameter);

}  // namespace lockstep::replica
