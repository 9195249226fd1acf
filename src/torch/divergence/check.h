// Finds bits that changed though nobody wrote them, and copies that are no longer equal.
//
//   fault    found by one worker in memory that it reads: what, where, whose
//   copy     of the weights: every worker has one, or the workers of a host have one together, or
//            there is only one
//   digest   of a worker: one number over the gradients that it applied and the values that came of
//            them. Those of the workers of a copy together are the digest of the copy. Copies with
//            different digests differ. Of three copies or more, the majority is right. Otherwise a
//            rerun of the step decides
//
// Digests travel with the metrics of a step, so the check costs no message of its own. They are
// compared before the next update.
#pragma once

#include <lockstep/comm.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flat/parity.h"

namespace lockstep::divergence {

// What the check looks at: a model and its update. Implemented in step/, which this folder does not
// see.
//
// Threads:   one caller at a time.
// Blocking:  seen() and check_at_rest() wait for a GPU; else never.
// Failure:   none: a difference is a fault.
class Subject {
 public:
  virtual ~Subject() = default;

  // After an update, one parity for each item. The first items are the gradients that were applied,
  // by piece. Then come parameters with state, by piece. 0 for pieces that other workers update.
  virtual std::vector<flat::Parity> seen() = 0;
  // What differs if workers differ in an item, such as "have applied different gradients to
  // fc1.weight (elements 0 to 8191)".
  virtual std::string item_name(std::size_t item) const = 0;

  // By worker, the number of the copy that it updates, alone or with others. Empty if there is one.
  virtual std::vector<int> copies() const = 0;

  // Compares parameters and state with what the last update left.
  virtual void check_at_rest() = 0;

  // The first fault that this worker found.
  struct Found {
    int worker = 0;
    std::string text;
    std::string remedy;
  };
  virtual std::optional<Found> fault() const = 0;
};

// The check of one model, over all workers.
//
// Threads:   one caller at a time.
// Blocking:  check_at_rest() and verdict(), which are collective, and judge() if digests differ; at
//            most the Comm's timeout.
// Failure:   Mismatch, the same on every worker.
// Ownership: borrows the subject and the Comm.
class Check {
 public:
  Check(Subject& subject, Comm& comm) : subject_(subject), comm_(comm) {}

  // After the update of a step: this worker's digest, for all workers. 0 if there are no copies to
  // compare, negative if this worker has found a fault. A double, because it travels with the
  // metrics.
  double digest(std::int64_t step);

  // Compares the digests of all workers. Throws if a worker has found a fault, or if copies differ
  // and more than half of them agree. Returns nothing if all are equal, else what only a rerun can
  // decide: the caller runs the step again, from the checkpoint, and then calls verdict().
  struct Undecided {
    std::int64_t step = 0;
    std::string text;  // "step 12: workers hold different bits of fc1.weight …"
    std::vector<std::vector<flat::Parity>> seen;  // by copy
  };
  std::optional<Undecided> judge(std::int64_t step, const std::vector<double>& digests);

  // Throws if parameters and state are not what the update of this step left. To be called before
  // they go to a file.
  void check_at_rest(std::int64_t step);

  // After a rerun that ended with this step. Always throws.
  [[noreturn]] void verdict(const Undecided& undecided);

 private:
  struct Record {
    std::int64_t step = 0;
    std::vector<flat::Parity> values;  // Subject::seen()
  };
  void throw_fault(std::int64_t step);
  void throw_any_fault(std::int64_t step);
  std::vector<std::vector<flat::Parity>> gather(const Record& mine);
  std::vector<int> workers_of(const std::vector<int>& copies) const;

  Subject& subject_;
  Comm& comm_;
  Record last_;
  std::optional<std::int64_t> faulty_step_;  // the first in which this worker had a fault
};

// The copies whose value differs from the majority's; empty if no value has more than half of them.
std::vector<int> minority(const std::vector<flat::Parity>& by_copy);

}  // namespace lockstep::divergence
