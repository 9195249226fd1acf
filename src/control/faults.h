// Faults on purpose in this process: fault_schedule.h says which there are, and how they are written.
//
// Each fault strikes once in a process. A worker that has joined later has those of the steps from there on. Workers that
// replace all others begin again with an earlier step: they have only faults at `join`, and for rates by step another
// sequence, or they would die at the same step again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "control/fault_schedule.h"

namespace lockstep::control {

// The faults of this process.
//
// Threads:   any.
// Blocking:  never, but for a fault: `stop` and `slow` return later.
// Failure:   here() throws BadInput for a text that is no list of faults. strike() throws std::bad_alloc for `oom`.
// Ownership: one for the process.
class Faults {
 public:
  // Reads LOCKSTEP_FAULTS, LOCKSTEP_FAULT_SEED and LOCKSTEP_FAULT_START, which the launcher sets.
  static Faults& here();

  // `from_launcher`: the launcher has the same list, and is told which of its faults strike.
  void add(const FaultSchedule& schedule, std::uint64_t seed, bool from_launcher = false);

  bool none() const { return !armed_.load(std::memory_order_relaxed); }
  // Whether one is due. strike: then it says so on standard error, and happens.
  bool due(std::string_view where, std::int64_t step);
  void strike(std::string_view where, std::int64_t step) {
    if (!none()) happen(where, step);
  }

  // The step under way, for code that does not know it.
  void begin(std::int64_t step) {
    step_.store(step, std::memory_order_relaxed);
    if (!none()) begin_step(step);
  }
  std::int64_t step() const { return step_.load(std::memory_order_relaxed); }

  // This worker has joined a job that was running, or that begins again because all of its workers had died.
  void came_later(std::uint64_t generation, bool restarted);

  // Changes one bit of the named memory; nothing: there is none at present.
  using Flip = std::function<void(std::string_view memory, std::uint64_t random)>;
  void set_flip(Flip flip);

 private:
  Faults() = default;
  static Faults& from_environment();
  struct Due {
    Fault fault;
    std::optional<double> from = {};  // drawn by step: strikes at this one or later
    bool drawn = false;               // strikes at any step
    int number = -1;                  // in the launcher's list
    bool told = false;                // of Fault::kEveryStep
  };
  struct Stream {
    FaultStream faults;
    std::uint64_t seed;
  };
  void happen(std::string_view where, std::int64_t step);
  void begin_step(std::int64_t step);
  void draw(std::int64_t step) LOCKSTEP_REQUIRES(mutex_);
  std::size_t find(std::string_view where, std::int64_t step) LOCKSTEP_REQUIRES(mutex_);
  std::optional<Due> take(std::string_view where, std::int64_t step);
  void strike_every_time(std::string_view where);  // Fault::kEveryStep
  void carry_out(const Fault& fault);
  void flip(const Fault& fault);

  std::atomic<bool> armed_{false};
  std::atomic<std::int64_t> step_{0};
  base::Mutex mutex_;
  std::vector<Due> due_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Stream> streams_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t generation_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // that this worker has joined later
  bool restarted_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool waits_for_step_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // it came later, and has run no step
  Flip flip_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::control
