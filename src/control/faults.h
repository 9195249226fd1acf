// Faults on purpose, so that a job can be tested against them. LOCKSTEP_FAULTS has a list of KIND@STEP:WORKER:WHERE:
//
//   kill@5:1:update,stop@7:0:forward
//
// KIND is what the worker does to itself: kill (SIGKILL), stop (SIGSTOP), crash (SIGSEGV). WORKER is its number for the
// launcher. WHERE is a point of a step:
//
//   forward      before the first shard                 backward     after the last shard
//   reduce       all numbers of the step before are there
//   small        the small values are on the commit page
//   intent       the intent is there                    torn         half of a piece is written
//   update       a piece is written                     written      all pieces of this worker are
//   commit       the step is committed                  numbers      before its numbers are sent
//   checkpoint   before one is copied                   disk         its first tensor is in the file
//   evaluation   before one
//   regroup      before the next generation forms       join         a worker that joins is about to get the state
//
// Each fault strikes once in a process, and not in a worker that has joined later or replaces one that died with all
// others; except at `join`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::control {

struct Fault {
  std::string kind;
  std::int64_t step = 0;
  int worker = 0;
  std::string where;

  bool operator==(const Fault&) const = default;
};

// BadInput, naming the part that is wrong.
std::vector<Fault> parse_faults(std::string_view text);

// The faults of this process.
//
// Threads:   any.
// Blocking:  never.
// Failure:   here() throws BadInput for a text that is no list of faults.
// Ownership: one for the process.
class Faults {
 public:
  static Faults& here();

  // Whether one is due. strike: then it happens, and a `stop` returns later.
  bool due(std::string_view where, std::int64_t step) const;
  void strike(std::string_view where, std::int64_t step) {
    if (!left_.empty() && due(where, step)) happen(where, step);
  }
  bool none() const { return left_.empty(); }

  // The step under way, for code that does not know it.
  void begin(std::int64_t step) { step_ = step; }
  std::int64_t step() const { return step_; }
  // This worker has joined a job that was running.
  void joined_later();

 private:
  explicit Faults(std::vector<Fault> all) : left_(std::move(all)) {}
  void happen(std::string_view where, std::int64_t step);

  std::vector<Fault> left_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep::control
