// One step in memory of the host.
//
//   own slice   the blocks that this worker updates: its share where workers share memory, else all
//   hand-out    the new values go into every worker's parameters, piece by piece while they are at hand
//
//   1. wait until every worker is here and means the same: all gradients are there, and nobody reads parameters any more
//   2. with clipping: the own slice of the gradients is gathered, its blocks' squares go where all see
//      them, wait again, and everybody adds all of them up in the order of the tree
//   3. read the gradient of a piece, update its part of the state and of the parameters, hand it out
//   4. wait until every slice is written
//
// Watched, an update compares what it finds with what the last one left: the parities of parameters and state, and of
// the gradients where they are watched as well. A difference is noted, and the step goes on: whoever owns the loop ends
// it on all workers together.
//
// With one parameter copy per host there is nobody to hand out to. In memory of its own a worker has nobody to wait for:
// what workers say travels while each updates its own copy, and is looked at after it. The bits are the same: each element
// sees the same operations.
#pragma once

#include <optional>

#include "torch/optim/step_note.h"
#include "torch/optim/update.h"

namespace lockstep::optim {

class HostUpdate : public Update {
 public:
  using Update::Update;
  double norm() override { return last_norm_; }
  double clip_factor() const override { return clip_factor_; }

 protected:
  // 2; 3 and 4.
  void clip(const GradientSource& source);
  void update(UpdateJournal* journal);
  virtual void meet() {}
  virtual void hand_out(const plan::Entry& entry, const plan::Stretch& piece) const = 0;

 private:
  GradientSource gathered(const GradientSource& source);
  double factor_of(const GradientSource& averages);
  template <typename Observer>
  void update_slice(Observer observer, UpdateJournal* journal);
  template <typename Observer>
  void update_piece(std::size_t number, GradientReader& gradients, Observer& observer);
  void leave_alone(std::size_t number, bool seen_before);
  const void* read(std::size_t number, GradientReader& gradients);

  GradientSource gradients_;  // of the step, from clip() on
  double clip_factor_ = 1;
  double last_norm_ = 0;
  std::optional<replica::FlatMemory> sums_;  // of gradients, where they are in several memories
  std::optional<replica::FlatMemory> block_sums_;  // of squares
};

class OwnUpdate : public HostUpdate {
 public:
  explicit OwnUpdate(Trained& trained)
      : HostUpdate(trained, {0, trained.model->pieces().all.size()}) {}
  void prepare(const GradientSource& source) override;
  void apply(UpdateJournal* journal) override;
  bool has_copies() const override { return true; }

 private:
  void hand_out(const plan::Entry&, const plan::Stretch&) const override {}

  Said said_;
};

class SharedUpdate : public HostUpdate {
 public:
  explicit SharedUpdate(Trained& trained);
  void prepare(const GradientSource& source) override;
  void apply(UpdateJournal* journal) override { update(journal); }
  bool has_copies() const override { return false; }

 private:
  void meet() override;
  void hand_out(const plan::Entry& entry, const plan::Stretch& piece) const override;
};

}  // namespace lockstep::optim
