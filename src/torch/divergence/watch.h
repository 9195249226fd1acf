// The part of the divergence check that runs where memory is read and written: it finds bits that nobody wrote.
//
//   gradients   every piece that is written keeps its parity (flat/parity.h), and a reader of the piece finds out whether
//               it has changed since
//   resting     the parity of parameters and state after the last update. If the next one finds another, a bit has changed
//               with nobody writing to it
//   applied     the parity of the gradients of the last update, where every worker updates a copy of its own
//
// It is in the same pass as the work, because a pass of its own would read all of memory a second time. Update code takes
// an observer as a template parameter: Blind, and nothing of this is compiled into it, or Watching.
#pragma once

#include <lockstep/buffer.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "flat/parity.h"
#include "plan/layout.h"
#include "plan/slices.h"

namespace lockstep::divergence {

// A bit that nobody wrote.
struct Fault {
  enum class What : std::uint8_t {
    kGradient,   // between a backward pass and the update
    kParameter,  // or its optimizer's state, between two updates
  };
  What what = What::kGradient;
  plan::Stretch where;
  int worker = 0;  // whose memory it was, by rank

  // "a bit of the gradient of fc1.weight (elements 0 to 8191) has changed in the memory of worker 1 …"
  std::string text(const plan::Layout& layout) const;
  std::string remedy() const;
};

// The first fault that was found.
//
// Threads:   any.
// Blocking:  never.
// Failure:   none.
class FirstFault {
 public:
  void note(const Fault& fault) {
    const base::Lock lock(mutex_);
    if (!first_) first_ = fault;
  }
  void forget() {
    const base::Lock lock(mutex_);
    first_.reset();
  }
  std::optional<Fault> get() const {
    const base::Lock lock(mutex_);
    return first_;
  }

 private:
  mutable base::Mutex mutex_;
  std::optional<Fault> first_ LOCKSTEP_GUARDED_BY(mutex_);
};

// The gradients of one memory.
//
// Threads:   one caller at a time; works on the threads that LibTorch uses.
// Blocking:  never.
// Failure:   none: a difference is a Fault of this worker, which is noted.
// Ownership: borrows all of it.
class GradientWatch {
 public:
  // `memory` is that of the gradients; `parities` has one for each piece.
  GradientWatch(std::byte* memory, flat::Parity* parities, const plan::Pieces& pieces,
                FirstFault& faults, int worker)
      : memory_(memory), parities_(parities), pieces_(pieces), faults_(faults), worker_(worker) {}

  // 0 + g into the place of an entry, or g is added to what is there; either way one pass. `given` may be a half type, and
  // its place float32.
  void move_in(std::size_t number, const plan::Entry& entry, const void* gradient, DType given,
               bool adds) const;

  // Adds what another memory has in the same place.
  void add(std::size_t number, const plan::Entry& entry, const GradientWatch& right) const;

  // Takes what lies there for right.
  void look_at(std::size_t number, const plan::Entry& entry) const;

 private:
  void expect(std::size_t piece, flat::Parity seen) const;
  template <typename Body>
  void for_each_piece(std::size_t number, const Body& body) const;

  std::byte* memory_;
  flat::Parity* parities_;
  const plan::Pieces& pieces_;
  FirstFault& faults_;
  int worker_;
};

// Which pieces, by number.
struct PieceRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

// What updates find and leave.
//
// Threads:   pieces may be told from several threads, each piece from one; all else from one caller at a time.
// Blocking:  never.
// Failure:   none: a difference is a Fault, which is noted.
// Ownership: borrows the pieces and where faults are noted.
class UpdateWatch {
 public:
  UpdateWatch(const plan::Pieces& pieces, PieceRange own, FirstFault& faults, int worker)
      : pieces_(pieces), own_(own), faults_(faults), worker_(worker) {}

  // Only while nobody else writes to parameters and state.
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
