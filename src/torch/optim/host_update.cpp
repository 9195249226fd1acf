// One step in memory of the host.
//
//   own slice   the blocks that this worker updates: its share where workers share memory, else all
//   publish     the new values go to all who read another memory, piece by piece while they are at hand
//
//   1. wait until every worker is here and means the same: all gradients are there, and nobody reads parameters any more
//   2. with clipping: the own slice of the gradients is gathered, its blocks' squares go where all see
//      them, wait again, and everybody adds all of them up in the order of the tree
//   3. read the gradient of a piece, update its part of the state and of the parameters, publish it
//   4. acquire: wait until every slice is written
//
// How values are published and acquired is the parameters' matter (replica/parameters.h): here it is the same for all.
//
// Watched, an update compares what it finds with what the last one left: the parities of parameters and state, and of
// the gradients where they are watched as well. A difference is noted, and the step goes on: the owner of the loop
// ends it on all workers together.
//
// In memory of its own a worker has nobody to wait for:
// what workers say travels while each updates its own copy, and is looked at after it. The bits are the same: each element
// sees the same operations.
#include <ATen/Parallel.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "torch/optim/update.h"

namespace lockstep::optim {
namespace {

// Pieces below which a second thread costs more than it saves.
constexpr std::int64_t kGrain = 4;

// Calls `body` with some pieces, by number, and a reader of the source, on the threads that LibTorch uses.
template <typename Body>
void for_each_piece(const replica::Replicated& model, divergence::PieceRange pieces,
                    const GradientSource& source, const Body& body) {
  const auto& entries = model.layout().entries();
  const auto first = static_cast<std::int64_t>(pieces.begin);
  const auto last = static_cast<std::int64_t>(pieces.end);
  at::parallel_for(first, last, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::optional<GradientReader> reader;
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const std::size_t entry = model.pieces().all[i].entry;
      const DType dtype = entries[entry].dtype;
      if (!reader || reader->dtype() != dtype) reader.emplace(source, entry, dtype);
      body(i, *reader);
    }
  });
}

std::size_t offset_of(const plan::Entry& entry, std::size_t element) {
  return entry.offset + element * size_of(entry.dtype);
}

class HostUpdate : public Update {
 public:
  using Update::Update;
  double norm() override { return last_norm_; }
  double clip_factor() const override { return clip_factor_; }

 protected:
  // 2; 3 and 4.
  void clip(const GradientSource& source);
  void update(UpdateJournal* journal);
  virtual void meet() {}  // all workers whose sums of squares this one reads

 private:
  void acquire();
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
};

void OwnUpdate::prepare(const GradientSource& source) {
  said_ = say_step(trained_, source);
  if (said_.cannot) std::rethrow_exception(said_.cannot);
  waited_ = {};
  clip(source);
}

void OwnUpdate::apply(UpdateJournal* journal) {
  update(journal);
  waited_ += hear_step(trained_, std::exchange(said_, {}));
}

SharedUpdate::SharedUpdate(Trained& trained)
    : HostUpdate(trained, [&] {
        const auto& first_of = trained.model->pieces().first_of_worker;
        const auto mine = static_cast<std::size_t>(trained.model->comm().rank());
        return divergence::PieceRange{first_of[mine], first_of[mine + 1]};
      }()) {}

void SharedUpdate::prepare(const GradientSource& source) {
  waited_ = hear_step(trained_, say_step(trained_, source));
  clip(source);
}

void SharedUpdate::meet() {
  const auto began = std::chrono::steady_clock::now();
  trained_.model->comm().barrier().wait();
  waited_ += std::chrono::steady_clock::now() - began;
}

// What others have written of the parameters.
void HostUpdate::acquire() {
  const auto began = std::chrono::steady_clock::now();
  trained_.model->parts().parameters->acquire(trained_.model->comm());
  waited_ += std::chrono::steady_clock::now() - began;
}

void HostUpdate::clip(const GradientSource& source) {
  last_norm_ = 0;
  clip_factor_ = 1;
  if (trained_.clip_norm == 0) {
    gradients_ = source;
    return;
  }
  gradients_ = gathered(source);
  clip_factor_ = gradients_.factor = factor_of(gradients_);
}

void HostUpdate::update(UpdateJournal* journal) {
  torch::NoGradGuard no_grad;
  trained_.groups.count_step(trained_.absent());
  if (watch_.on()) {
    const bool compares = watch_.knows();
    watch_.begin(has_copies());
    update_slice(divergence::Watching{watch_, compares}, journal);
  } else {
    update_slice(divergence::Blind{}, journal);
  }
  acquire();
  bump_versions();
  trained_.model->note_update();
}

// Averages in one memory. The operands stay as they are: a step that is not done may have to be done again.
GradientSource HostUpdate::gathered(const GradientSource& source) {
  replica::Replicated& model = *trained_.model;
  const bool is_there = source.is(model.gradients());
  if (is_there && source.parities.empty()) return source;
  if (!is_there && !sums_)
    sums_.emplace(model.comm(), model.layout().bytes(), replica::Copies::kPerHost);
  for_each_piece(model, watch_.own(), source, [&](std::size_t number, GradientReader& gradients) {
    const plan::Stretch& piece = model.pieces().all[number];
    const plan::Entry& entry = model.layout().entries()[piece.entry];
    const void* const values = read(number, gradients);
    if (!is_there)
      std::memcpy(sums_->data() + offset_of(entry, piece.first), values,
                  piece.count * size_of(entry.dtype));
  });
  return is_there ? GradientSource::own(model) : GradientSource::of(*sums_, model.layout());
}

// What the gradients are multiplied by so that their norm is at most clip_norm.
double HostUpdate::factor_of(const GradientSource& averages) {
  replica::Replicated& model = *trained_.model;
  const plan::Layout& layout = model.layout();
  if (!block_sums_)
    block_sums_.emplace(model.comm(), layout.blocks() * sizeof(double), replica::Copies::kPerHost);
  auto* const sums = reinterpret_cast<double*>(block_sums_->data());
  for_each_piece(model, watch_.own(), averages, [&](std::size_t number, GradientReader& gradients) {
    const plan::Stretch& piece = model.pieces().all[number];
    const plan::Entry& entry = layout.entries()[piece.entry];
    const auto* const values = static_cast<const std::byte*>(read(number, gradients));
    for (std::size_t done = 0; done < piece.count; done += plan::kBlockElements) {
      const std::size_t count = std::min(plan::kBlockElements, piece.count - done);
      sums[entry.first_block + (piece.first + done) / plan::kBlockElements] =
          flat::sum_of_squares(entry.dtype, values + done * size_of(entry.dtype), count);
    }
  });
  meet();
  last_norm_ = std::sqrt(plan::tree_sum({sums, layout.blocks()}));
  if (!std::isfinite(last_norm_)) throw BadInput(diverged(last_norm_, trained_.groups.steps()));
  const double factor = trained_.clip_norm / (last_norm_ + 1e-6);  // as torch's clip_grad_norm_
  return std::min(factor, 1.0);
}

template <typename Observer>
void HostUpdate::update_slice(Observer observer, UpdateJournal* journal) {
  for_each_piece(*trained_.model, watch_.own(), gradients_,
                 [&](std::size_t number, GradientReader& gradients) {
                   update_piece(number, gradients, observer);
                   if (journal != nullptr) journal->wrote(number);
                 });
}

template <typename Observer>
void HostUpdate::update_piece(std::size_t number, GradientReader& gradients, Observer& observer) {
  const plan::Stretch& piece = trained_.model->pieces().all[number];
  if (trained_.leaves_alone(piece.entry)) {
    if constexpr (Observer::kWatches) leave_alone(number, observer.compares);
    return;
  }
  const plan::Entry& entry = trained_.model->layout().entries()[piece.entry];
  const std::size_t offset = offset_of(entry, piece.first);
  Elements update;
  update.dtype = entry.dtype;
  update.parameter = trained_.model->parameters().data() + offset;
  update.count = piece.count;
  const auto& memories = trained_.state.memories();
  for (std::size_t i = 0; i < memories.size(); ++i) update.state[i] = memories[i].data() + offset;
  const Rule& rule = trained_.groups.rule_of(piece.entry);
  const std::int64_t step = trained_.groups.steps_of(piece.entry);
  if constexpr (Observer::kWatches) {
    update.gradient = read(number, gradients);
    observer.watch.saw(number, rule.update_with_parity(update, step), observer.compares);
    if (observer.watch.keeps_applied())
      observer.watch.applied(number, flat::parity(entry.dtype, update.gradient, piece.count));
  } else {
    update.gradient = gradients.read(piece);
    rule.update(update, step);
  }
  trained_.model->parts().parameters->publish(piece);
}

// What nobody has a gradient for stays as it is; if no update has seen it yet, it is looked at for the next.
void HostUpdate::leave_alone(std::size_t number, bool seen_before) {
  if (watch_.keeps_applied()) watch_.applied(number, 0);
  if (!seen_before) watch_.rests(number, parity_at_rest(trained_.model->pieces().all[number]));
}

// The gradient of a piece, and a note if it is not what was written.
const void* HostUpdate::read(std::size_t number, GradientReader& gradients) {
  const void* const values =
      gradients.read_with_parity(number, trained_.model->pieces().all[number]);
  if (const auto worker = gradients.changed()) watch_.gradient_changed(number, *worker);
  return values;
}

}  // namespace

std::unique_ptr<Update> make_own_update(Trained& trained) {
  return std::make_unique<OwnUpdate>(trained);
}

std::unique_ptr<Update> make_shared_update(Trained& trained) {
  return std::make_unique<SharedUpdate>(trained);
}

}  // namespace lockstep::optim
