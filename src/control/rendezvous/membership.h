// Who is in the next generation of a job whose workers may leave and join. Pure: no clock and no sockets.
//
//   place       a worker's number for its launcher. A worker that replaces another one has its place; its rank may be
//               another in every generation
//   survivor    a worker of the last generation whose process lives
//   newcomer    a worker that was in no generation yet
//
// A generation forms when all survivors wait for it. So a worker is never left out while it may still write to memory
// that others share. If one does not come, though the others have waited for it for the time that the rules allow, it is
// to be expelled: the launcher ends its process. Newcomers come in between two batches, and nobody waits for them; except
// if no worker survives, or too few: then the job waits until enough are there.
//
// The job may be given fewer workers, or a host may be told to leave: then those in the highest places, or on that host,
// leave between two batches, when all survivors wait, so that no step is lost. The launcher ends their processes, and the others form the next generation.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::control {

struct MembershipRules {
  int least = 1;                               // workers
  int wanted = 1 << 16;                        // places below this one are to be filled,
  std::set<int> leaving = {};                  // … but for these: their host leaves
  std::chrono::milliseconds patience{30'000};  // for a survivor that others wait for
  bool began_before = false;                   // there were workers before the first generation

  bool wants(int place) const { return place < wanted && !leaving.contains(place); }
};

// A worker that waits for the next generation.
struct Candidate {
  int place = 0;
  bool in_batch = false;  // a survivor in the middle of a batch: no newcomer can come in there
  std::chrono::steady_clock::time_point since;  // when it came
};

struct Membership {
  std::set<int> alive;             // places whose processes run
  std::vector<int> last;           // places of the last generation, by rank; empty: there was none
  std::vector<Candidate> waiting;  // each place once
  int before = 0;                  // how many the last generation had
};

struct MembershipVerdict {
  std::vector<int> forms;      // the next generation: places by rank; empty: not yet
  int survivors = 0;           // among them, the first
  std::vector<int> expelled;   // end their processes: others have waited for them in vain
  std::vector<int> dismissed;  // end their processes: they are not to stay
  std::optional<std::chrono::steady_clock::time_point> ask_again;
  std::string reason;  // why it forms, or for whom it waits
};

// The survivors that are to leave between two batches; none as long as too few would stay.
std::vector<int> to_dismiss(const Membership& now, const MembershipRules& rules);

// Survivors keep their order, so the leader stays if it survives. Newcomers follow, by place.
MembershipVerdict next_members(const Membership& now, const MembershipRules& rules,
                               std::chrono::steady_clock::time_point time);

}  // namespace lockstep::control
