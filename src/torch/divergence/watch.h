// The part of the divergence check that runs where memory is read and written. It finds bits that
// changed though nobody wrote them.
//
//   gradients   the writer of a piece also keeps its parity (flat/parity.h). A reader of the piece
//               compares
//   resting     the parity of parameters and state after the last update. If the next update finds
//               another, a bit has changed in between
//   applied     the parity of the gradients of the last update, if every worker updates a whole
//               copy. check.h compares it between workers
//
// Parities are computed in the loops that do the work, because a loop of their own would read all
// memory a second time. The update has an observer as template parameter: with Blind nothing of
// this is compiled into it, with Watching all is.
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
#include "flat/past_caches.h"
#include "plan/layout.h"
#include "plan/slices.h"

namespace lockstep::divergence {

// A bit that changed though nobody wrote it.
struct Fault {
  enum class What : std::uint8_t {
    kGradient,   // changed between backward and update
    kParameter,  // or optimizer state; changed between two updates
  };
  What what = What::kGradient;
  plan::Stretch where;
  int worker = 0;  // whose memory it was, by rank

  // "a bit of the gradient of fc1.weight (elements 0 to 8191) has changed …"
  std::string text(const plan::Layout& layout) const;
  std::string remedy() const;
};

// Keeps the first fault that this worker finds. Owned by replica::Parts.
//
// Threads:   any: faults are found on LibTorch's threads.
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

// Writes the gradients of one bank, with parity. Owned by replica::FlatGradients.
//
// Threads:   one caller at a time; it divides its work among LibTorch's threads.
// Blocking:  never.
// Failure:   none: a difference is noted as a Fault of this worker.
// Ownership: borrows everything.
class GradientWatch {
 public:
  // `memory` has the gradients, `bytes` in all; `parities` has one word for each piece.
  GradientWatch(std::byte* memory, std::size_t bytes, flat::Parity* parities,
                const plan::Pieces& pieces, FirstFault& faults, int worker)
      : memory_(memory),
        copy_(bytes < flat::kPastCachesBytes ? flat::copy_with_parity
                                             : flat::copy_past_caches_with_parity),
        parities_(parities),
        pieces_(pieces),
        faults_(faults),
        worker_(worker) {}

  // `number` is that of the entry. Writes 0 + g to it; with `adds`, adds g to it. `given` is the
  // type of g: it may be a half type if the entry is float32.
  void move_in(std::size_t number, const plan::Entry& entry, const void* gradient, DType given,
               bool adds) const;

  // Adds the same entry of another bank.
  void add(std::size_t number, const plan::Entry& entry, const GradientWatch& right) const;

  // Takes the parity of what the entry has now: something else has written it.
  void look_at(std::size_t number, const plan::Entry& entry) const;

 private:
  void expect(std::size_t piece, flat::Parity seen) const;
  template <typename Body>
  void for_each_piece(std::size_t number, const Body& body) const;

  std::byte* memory_;
  decltype(&flat::copy_with_parity) copy_;
  flat::Parity* parities_;
  const plan::Pieces& pieces_;
  FirstFault& faults_;
  int worker_;
};

// Pieces begin … end−1, by number.
struct PieceRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

// The parities of what updates find and leave. Owned by an Update.
//
// Threads:   saw(), applied(piece, …), rests() and gradient_changed() from several threads, each
//            piece from one; all else from one caller at a time.
// Blocking:  never.
// Failure:   none: a difference is noted as a Fault.
// Ownership: borrows the pieces and the FirstFault.
class UpdateWatch {
 public:
  UpdateWatch(const plan::Pieces& pieces, PieceRange own, FirstFault& faults, int worker)
      : pieces_(pieces), own_(own), faults_(faults), worker_(worker) {}

  // Only while nothing but updates writes to parameters and state. Forgets all parities.
  void switch_on(bool on);
  bool on() const { return on_; }
  void forget() { resting_.clear(); }

  // Whether there are parities of an update before to compare with.
  bool knows() const { return resting_.size() == own_.size(); }

  // An update begins. `copies`: whether there are several, which will be compared.
  void begin(bool copies);
  // The update found and left these parities; `compares`: with the update before.
  void saw(std::size_t piece, const flat::Parities& seen, bool compares);
  void applied(std::size_t piece, flat::Parity gradient);
  bool keeps_applied() const { return !applied_.empty(); }
  void gradient_changed(std::size_t piece, int worker);

  // Without an update: compares the parity that a piece has now, or keeps it for the next update.
  void expect(std::size_t piece, flat::Parity now);
  void rests(std::size_t piece, flat::Parity now) { resting_[piece - own_.begin] = now; }

  // All own pieces at once, for an update on a GPU.
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
  std::vector<flat::Parity> applied_;  // by own piece; empty: not kept
};

struct Blind {
  static constexpr bool kWatches = false;
};

struct Watching {
  static constexpr bool kWatches = true;
  UpdateWatch& watch;
  bool compares;  // false for the first update, which has nothing to compare with
};

}  // namespace lockstep::divergence
