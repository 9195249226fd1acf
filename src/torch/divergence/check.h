// Whether all is as the job says: bits that changed on their own, and copies that are no longer equal.
//
//   fault   found by one worker in memory that it reads: it knows what, where and whose
//   mark    where every worker updates a copy of its own, a number over the gradients that it applied and the values
//           that came of it. Workers whose marks differ hold different weights; which of them is wrong the others say,
//           three copies or more, or else a replay of the step
//
// Marks travel with the metrics of a step, so that the check costs no message; what they say is known before the next
// update.
#pragma once

#include <lockstep/comm.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flat/parity.h"

namespace lockstep::divergence {

// What the divergence check looks at: a model that is trained, and the update that trains it.
//
// Threads:   one caller at a time.
// Blocking:  seen() and check_at_rest(), on a GPU until what they look at is done.
// Failure:   none: a difference is a fault.
class Subject {
 public:
  virtual ~Subject() = default;

  // After an update, a list of items: the gradients that were applied to each piece, then its parameters with state.
  virtual std::vector<flat::Parity> seen() = 0;
  // What workers do differently in an item: "have applied different gradients to fc1.weight (elements 0 to 8191)".
  virtual std::string item_name(std::size_t item) const = 0;

  // Whether every worker updates a copy of its own.
  virtual bool has_copies() const = 0;

  // Compares what there is with what the last update has left.
  virtual void check_at_rest() = 0;

  // The first one of this worker.
  struct Found {
    int worker = 0;
    std::string text;
    std::string remedy;
  };
  virtual std::optional<Found> fault() const = 0;
};

// Threads:   one caller at a time.
// Blocking:  judge() with news, check_at_rest() and verdict(), which are collective; at most the Comm's timeout.
// Failure:   Mismatch, the same on every worker.
// Ownership: borrows the subject and the Comm.
class Check {
 public:
  Check(Subject& subject, Comm& comm) : subject_(subject), comm_(comm) {}

  // After the update of a step, on a GPU when it has run: what the others should know of it. 0: nothing.
  double mark(std::int64_t step);

  // The marks of all workers after the last step. Throws when one has found a fault, or when copies differ
  // and most of them agree. Returns what only a replay can decide: the step is run again, from a state that is
  // known, and verdict() told.
  struct Undecided {
    std::int64_t step = 0;
    std::string text;  // "step 12: workers hold different bits of fc1.weight …"
    std::vector<std::vector<flat::Parity>> seen;  // by worker
  };
  std::optional<Undecided> judge(std::int64_t step, const std::vector<double>& marks);

  // Whether parameters and state are what the last update, of this step, has left: before they are written to a file.
  void check_at_rest(std::int64_t step);

  // After a replay up to and with the step. Always throws.
  [[noreturn]] void verdict(const Undecided& undecided);

 private:
  struct Record {
    std::int64_t step = 0;
    std::vector<flat::Parity> values;  // gradients applied, then parameters with state; by piece
  };
  void throw_fault(std::int64_t step);
  void throw_any_fault(std::int64_t step);
  std::vector<std::vector<flat::Parity>> gather(const Record& mine);

  Subject& subject_;
  Comm& comm_;
  Record last_;
  std::optional<std::int64_t> faulty_step_;
};

// Which workers a value belongs to that most do not have; none if no value is held by more than half.
std::vector<int> minority(const std::vector<flat::Parity>& by_worker);

}  // namespace lockstep::divergence
