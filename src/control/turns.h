// The turns of a loop whose workers run out of batches at different times (lockstep/uneven_inputs.h).
//
//   turn      one run of the loop's body, on every worker
//   present   the worker has a batch of its own in this turn
//   idle      it has none. It runs the body with its last batch once more, so that it takes part in
//             every collective, and nothing of that batch counts
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "control/announcements.h"

namespace lockstep::control {

// Who is present in a turn.
struct Presence {
  int first = 0;     // the lowest rank
  int count = 0;     // of workers
  bool here = true;  // this worker
};

// The turn under way. Outside of such a loop everybody is present. Announcements has one for its
// world: replicas, batch norms and averages ask it what counts.
//
// Threads:   one caller at a time.
// Blocking:  begin() and presence() may wait for the other workers, at most the Comm's timeout.
// Failure:   BadInput and Mismatch as UnevenInputs; PeerLost, Timeout.
// Ownership: shares the announcement of the turn.
class Turns {
 public:
  enum class Batch : std::uint8_t {
    kNone,     // there has never been one
    kRepeats,  // the last one once more
    kOwn,
  };
  struct Rule {
    bool divides_by_present = false;  // or by the number of workers
    bool throws_if_one_ends = false;
  };
  // All workers say what they have. False: nobody has a batch, and the loop has ended. It waits for
  // the answers in the first turn, and where this worker cannot go on without them.
  bool begin(Announcements& announcements, Batch batch, const Rule& rule);
  // Leaves the loop. Before its end all workers do so in the same turn. One that goes on gets a
  // Mismatch, as soon as it begins its next turn.
  void leave(Announcements& announcements) noexcept;

  bool under_way() const { return said_ != nullptr; }
  bool idle() const { return idle_; }

  // Waits until all workers have said what they have.
  Presence presence(int workers) const;
  // By what the sum of gradients without weights is divided. nullopt: not all have spoken yet.
  std::optional<int> divisor(int workers) const;

 private:
  void check(Announcements& announcements, std::uint64_t own_rule) const;
  void end() { said_.reset(), idle_ = false; }

  std::shared_ptr<const Announcement> said_;  // null: no such loop
  bool idle_ = false;
  bool divides_by_present_ = false;
};

}  // namespace lockstep::control
