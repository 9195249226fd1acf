// What updates find and leave, piece by piece: the part of the divergence check that runs inside an update.
//
//   resting   the parity (comm/core/parity.h) of parameters and state after the last update. If the next one finds
//             another, a bit has changed with nobody writing to it
//   applied   the parity of the gradients of the last update, where every worker updates a copy of its own
//
// Update code takes an observer as a template parameter: Blind, and nothing of this is compiled into it, or Watching.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "flat/parity.h"
#include "plan/slices.h"
#include "torch/divergence/fault.h"

namespace lockstep::divergence {

// Which pieces, by number.
struct PieceRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

// Threads:   pieces may be told from several threads, each piece from one; all else from one caller at a time.
// Blocking:  never.
// Failure:   none: a difference is a Fault, which is noted.
// Ownership: borrows the pieces and where faults are noted.
class UpdateWatch {
 public:
  UpdateWatch(const plan::Pieces& pieces, PieceRange own, FirstFault& faults, int worker)
      : pieces_(pieces), own_(own), faults_(faults), worker_(worker) {}

  // Only for whoever knows that nobody else writes to parameters and state.
  void switch_on(bool on);
  bool on() const { return on_; }
  void forget() { resting_.clear(); }

  // Whether an update has left something to compare with.
  bool knows() const { return resting_.size() == own_.size(); }

  // An update begins; with `copies`, of a copy that other workers have, too.
  void begin(bool copies);
  void saw(std::size_t piece, const flat::Parities& seen, bool compares);
  void applied(std::size_t piece, flat::Parity gradient);
  bool keeps_applied() const { return !applied_.empty(); }
  void gradient_changed(std::size_t piece, int worker);

  // Without an update: what a piece is now, compared, or kept to be compared.
  void expect(std::size_t piece, flat::Parity now);
  void rests(std::size_t piece, flat::Parity now) { resting_[piece - own_.begin] = now; }

  // An update of all own pieces that was seen elsewhere.
  void saw_all(std::span<const flat::Parity> before, std::span<const flat::Parity> after,
               std::span<const flat::Parity> gradients);

  const std::vector<flat::Parity>& resting() const { return resting_; }
  const std::vector<flat::Parity>& applied() const { return applied_; }
  const PieceRange& own() const { return own_; }

 private:
  void note_changed(std::size_t piece);

  const plan::Pieces& pieces_;
  PieceRange own_;
  FirstFault& faults_;
  int worker_;
  bool on_ = false;
  std::vector<flat::Parity> resting_;  // by own piece; empty: not known
  std::vector<flat::Parity> applied_;  // the same
};

struct Blind {
  static constexpr bool kWatches = false;
};

struct Watching {
  static constexpr bool kWatches = true;
  UpdateWatch& watch;
  bool compares;  // with what the last update left
};

}  // namespace lockstep::divergence
