// One step on the CPU.
//
//   own slice   what this worker updates: its slice if the workers of its host share memory, else
//               everything
//   publish     new values go to the other memories piece by piece, while they are in the cache
//
//   1. Wait until every worker has announced the same step. Then all gradients are there, and
//      nobody reads parameters any more.
//   2. If a scale or norms decide the update (clipping, LARS, LAMB): read the own slice of gradients
//      and parameters, and put the numbers of its blocks where all workers see them (norms.h). Wait
//      again. Then every worker finds the same: whether gradients have overflowed, the factor of
//      clipping, the trust in each parameter.
//   3. For each piece: read its gradient, update its state, its parameters and their average,
//      publish it. Norms that nobody has needed so far are measured here, if they are kept.
//   4. Acquire: wait until every slice is written.
//
// replica/parameters.h decides how values are published and acquired.
//
// With parity an update compares what it finds with what the last one left, and gradients with what
// backward wrote. A difference is only noted, and the step goes on. The owner of the loop then ends
// it on all workers together.
//
// A worker with memory of its own need not wait in step 1: announcements travel while each worker
// updates its copy, and are compared after it. The bits are the same in both classes, because each
// element sees the same operations.
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "control/faults.h"
#include "torch/optim/host_update.h"

namespace lockstep::optim {
namespace {

using Row = BlockNorms::Row;

// Elements first … first + count − 1 of some elements.
flat::Elements part_of(const flat::Elements& all, std::size_t first, std::size_t count) {
  const std::size_t bytes = first * size_of(all.dtype);
  flat::Elements part = all;
  part.count = count;
  part.parameter = static_cast<std::byte*>(all.parameter) + bytes;
  part.gradient = static_cast<const std::byte*>(all.gradient) + bytes;
  for (void*& state : part.state) {
    if (state != nullptr) state = static_cast<std::byte*>(state) + bytes;
  }
  return part;
}

// Memory of its own: nobody else reads or writes it.
class OwnUpdate : public HostUpdate {
 public:
  explicit OwnUpdate(Trained& trained)
      : HostUpdate(trained, {0, trained.model->pieces().all.size()}) {}
  void prepare(const GradientSource& source) override;
  void apply(UpdateJournal* journal) override;
  void skip(UpdateJournal* journal) override;
  bool has_copies() const override { return true; }

 private:
  replica::Copies copies() const override { return replica::Copies::kPerWorker; }

  Said said_;
};

// Shared memory: each worker updates its slice for all.
class SharedUpdate : public HostUpdate {
 public:
  explicit SharedUpdate(Trained& trained);
  void prepare(const GradientSource& source) override;
  void apply(UpdateJournal* journal) override { update(journal); }
  void skip(UpdateJournal* journal) override { leave(journal); }
  bool has_copies() const override { return trained_.model->parts().neighbours.has_value(); }

 private:
  replica::Copies copies() const override { return replica::Copies::kPerHost; }
  void meet() override;
};

// Step 3 is the program's: its optimizer reads averages in param.grad, unscaled and clipped there,
// and writes to weights that only this worker has.
class WrappedUpdate : public OwnUpdate {
 public:
  WrappedUpdate(Trained& trained, std::shared_ptr<WrappedOptimizer> optimizer)
      : OwnUpdate(trained), optimizer_(std::move(optimizer)) {
    trained.model->parts().keep_private();
  }
  void accept(const Extras& extras) override { check_wrapped(extras); }
  bool reads_grad() const override { return true; }
  bool packs() const override { return true; }
  torch::Tensor pack() const override { return optimizer_->pack(); }
  void unpack(const torch::Tensor& bytes) override { optimizer_->unpack(bytes); }

 private:
  void write(UpdateJournal* journal) override;
  void hand_over(std::size_t number, replica::GradientReader& gradients);

  std::shared_ptr<WrappedOptimizer> optimizer_;
};

}  // namespace

void OwnUpdate::prepare(const GradientSource& source) {
  begin(source);
  said_ = say_step(trained_, source);
  if (said_.cannot) std::rethrow_exception(said_.cannot);
  waited_ = {};
  find_numbers(source);
}

void OwnUpdate::apply(UpdateJournal* journal) {
  update(journal);
  waited_ += hear_step(trained_, std::exchange(said_, {}));
}

void OwnUpdate::skip(UpdateJournal* journal) {
  leave(journal);
  waited_ += hear_step(trained_, std::exchange(said_, {}));
}

SharedUpdate::SharedUpdate(Trained& trained)
    : HostUpdate(trained, [&] {
        const auto& first_of = trained.model->pieces().first_of_worker;
        Comm& host = trained.model->parts().host();
        const auto first = [&](int rank) {
          const std::size_t slices = first_of.size() - 1;
          return first_of[slices * static_cast<std::size_t>(rank) /
                          static_cast<std::size_t>(host.size())];
        };
        return divergence::PieceRange{first(host.rank()), first(host.rank() + 1)};
      }()) {}

void SharedUpdate::prepare(const GradientSource& source) {
  begin(source);
  waited_ = hear_step(trained_, say_step(trained_, source));
  find_numbers(source);
}

void SharedUpdate::meet() {
  const auto began = std::chrono::steady_clock::now();
  trained_.model->parts().host().barrier().wait();
  waited_ += std::chrono::steady_clock::now() - began;
}

base::ByteRange HostUpdate::own_bytes() const {
  const divergence::PieceRange& own = watch_.own();
  if (own.size() == 0) return {};
  const plan::Layout& layout = trained_.model->layout();
  const plan::Stretch& last = trained_.model->pieces().all[own.end - 1];
  return {
      replica::offset_of(layout, trained_.model->pieces().all[own.begin]),
      replica::offset_of(layout, last) + last.count * size_of(layout.entries()[last.entry].dtype)};
}

// Step 4, with its time.
void HostUpdate::acquire() {
  const auto began = std::chrono::steady_clock::now();
  trained_.model->parts().parameters->acquire(trained_.model->parts().host(), trained_.absent());
  waited_ += std::chrono::steady_clock::now() - began;
}

// What a program has written to parameters of the own slice counts, so it is brought there before
// norms are taken.
void HostUpdate::find_numbers(const GradientSource& source) {
  now_.began = true;
  heed_loads();
  trained_.model->parts().parameters->begin_update(own_bytes());
  last_norm_ = 0;
  norms_.clear();
  clip_factor_ = 1;
  overflowed_ = false;
  is_gathered_ = false;
  unscale_ = 1;
  const bool clips = trained_.extras.clip_norm > 0;
  const LayerNorm needed = trained_.groups.layer_norm();
  gradients_ = source;
  if (!source.scale) gradients_.limit = trained_.extras.clip_value;
  if (source.measured) check_measured(trained_);
  measures_ = (trained_.extras.keeps_norms || source.measured) && !clips &&
              needed != LayerNorm::kGradient && !source.scale;
  if (measures_) rows();  // takes memory before anything is written
  if (clips || needed == LayerNorm::kGradient || source.scale) measure_gradients(source.scale);
  if (overflowed_) return;
  if (needed == LayerNorm::kChange) measure_changes();
  if (needed != LayerNorm::kNone) find_trusts();
}

BlockNorms& HostUpdate::rows() {
  if (!rows_) rows_.emplace(trained_.model->parts().host(), trained_.model->layout(), copies());
  return *rows_;
}

void HostUpdate::update(UpdateJournal* journal) {
  torch::NoGradGuard no_grad;
  count_step();
  write(journal);
  if (journal != nullptr) {
    control::Faults& faults = control::Faults::here();
    faults.strike("written", faults.step());
  }
  acquire();
  if (measures_ && trained_.extras.keeps_norms) last_norm_ = rows_->norm(Row::kGradient);
  keep_norms();
  bump_versions();
  trained_.state.trust_masters();
}

void HostUpdate::write(UpdateJournal* journal) {
  if (watch_.on()) {
    const bool compares = watch_.knows();
    watch_.begin(has_copies());
    update_slice(divergence::Watching{watch_, compares}, journal);
  } else {
    update_slice(divergence::Blind{}, journal);
  }
}

// What the program wrote to parameters counts from now on, as after an update.
void HostUpdate::leave(UpdateJournal* journal) {
  for (std::size_t piece = watch_.own().begin; piece < watch_.own().end && journal; ++piece)
    journal->wrote(piece);
  acquire();
}

// Calls visit(piece, gradient) for each of the pieces. Returns the averages in one memory,
// because the update reads them again. They do not overwrite the operands: a step that is not
// committed may have to be repeated from them.
template <typename Visit>
GradientSource HostUpdate::gathered(const GradientSource& source, const replica::SomePieces& pieces,
                                    const Visit& visit) {
  replica::Replicated& model = *trained_.model;
  const bool is_there = source.is(model.averages());
  if (!is_there && !sums_) sums_.emplace(model.parts().host(), model.layout().bytes(), copies());
  replica::for_each_piece(pieces, source,
                          [&](std::size_t number, replica::GradientReader& gradients) {
                            const plan::Stretch& piece = model.pieces().all[number];
                            const void* const values = read(number, gradients);
                            visit(piece, values);
                            if (!is_there)
                              std::memcpy(sums_->data() + replica::offset_of(model.layout(), piece),
                                          values, piece.count * size_of(gradients.dtype()));
                          });
  auto averages = GradientSource::of(is_there ? model.averages() : *sums_, model.layout());
  averages.limit = source.limit;
  return averages;
}

// As find_numbers() leaves it, without the numbers: finish() gets those.
void HostUpdate::take_over(const GradientSource& source) {
  begin(source);
  now_.began = true;
  is_gathered_ = false;
  if (!source.scale) gradients_.limit = trained_.extras.clip_value;
  if (trained_.extras.clip_norm == 0 && trained_.groups.layer_norm() == LayerNorm::kNone &&
      !source.scale)
    return;
  const replica::SomePieces all{trained_.model->parts().plan,
                                {0, trained_.model->pieces().all.size()}};
  gradients_ = gathered(gradients_, all, [](const plan::Stretch&, const void*) {});
  is_gathered_ = true;
}

// In one pass over the averages. With a scale they are measured before they are divided by it. If a
// gradient of some shard is infinite or not a number, then so is the sum over shards (∞ − ∞ is not a
// number), and its square. Squares of float32 do not overflow in float64.
void HostUpdate::measure_gradients(std::optional<double> scale) {
  BlockNorms& rows = this->rows();
  const bool layer_wise = trained_.groups.layer_norm() != LayerNorm::kNone;
  const bool clips = trained_.extras.clip_norm > 0;
  const bool largest = clips && trained_.extras.clipped == Norm::kLargest;
  const bool squares =
      !largest || layer_wise || scale || trained_.extras.keeps_norms || gradients_.measured;
  if (scale) check_scaled(trained_);
  gradients_ =
      gathered(gradients_, own_pieces(), [&](const plan::Stretch& piece, const void* gradient) {
        const DType dtype = trained_.model->layout().entries()[piece.entry].dtype;
        if (squares) rows.put_squares(Row::kGradient, piece, {dtype, gradient});
        if (largest) rows.put_largest(piece, {dtype, gradient});
        if (layer_wise) rows.put_squares(Row::kWeight, piece, {dtype, weights_of(piece)});
      });
  is_gathered_ = true;
  meet();
  unscale_ = scale ? static_cast<float>(1 / *scale) : 1;
  const double norm = unscale_ * rows.norm(largest ? Row::kLargest : Row::kGradient);
  overflowed_ = scale && !std::isfinite(rows.norm(Row::kGradient));
  if (overflowed_) return;
  if (!std::isfinite(norm)) throw BadInput(diverged(norm, trained_.groups.steps()));
  if (clips || !scale || trained_.extras.keeps_norms) last_norm_ = norm;
  if (clips)
    clip_factor_ = std::min(trained_.extras.clip_norm / (norm + 1e-6), 1.0);  // as clip_grad_norm_
  gradients_.factor = clip_factor_ * unscale_;
  gradients_.limit = trained_.extras.clip_value;
}

// The changes are not kept: the update computes them again.
void HostUpdate::measure_changes() {
  BlockNorms& rows = this->rows();
  const auto measure = [&](const plan::Stretch& piece, const void* gradient) {
    const DType dtype = trained_.model->layout().entries()[piece.entry].dtype;
    if (!is_gathered_) rows.put_squares(Row::kWeight, piece, {dtype, weights_of(piece)});
    Master master(trained_, piece);
    flat::Elements all = elements_of(piece, master);
    all.gradient = master.widened(gradient, is_gathered_ ? &gradients_ : nullptr);
    const Rule& rule = trained_.groups.rule_of(piece.entry);
    const std::int64_t step = trained_.groups.steps_of(piece.entry) + 1;
    rows.put(Row::kChange, piece, [&](std::size_t first, std::size_t count) {
      return rule.squares_of_change(part_of(all, first, count), step);
    });
  };
  if (is_gathered_) {  // and the weights are measured
    replica::for_each_piece(own_pieces(), gradients_,
                            [&](std::size_t number, replica::GradientReader& gradients) {
                              const plan::Stretch& piece = trained_.model->pieces().all[number];
                              measure(piece, gradients.read(piece));
                            });
  } else {
    gradients_ = gathered(gradients_, own_pieces(), measure);
    is_gathered_ = true;
  }
  meet();
  const double norm = rows.norm(Row::kChange);
  if (!std::isfinite(norm)) throw BadInput(diverged(norm, trained_.groups.steps()));
}

void HostUpdate::find_trusts() {
  const bool of_gradient = trained_.groups.layer_norm() == LayerNorm::kGradient;
  for (std::size_t entry = 0; entry < trusts_.size(); ++entry) {
    const double other = of_gradient ? gradients_.factor * rows_->norm(Row::kGradient, entry)
                                     : rows_->norm(Row::kChange, entry);
    const auto trust = trained_.groups.rule_of(entry).trust(trained_.parameter(entry).dim());
    trusts_[entry] = trust.of(rows_->norm(Row::kWeight, entry), other);
  }
}

// Nobody writes to the rows before every worker has announced the next step.
void HostUpdate::keep_norms() {
  if (!trained_.extras.keeps_norms) return;
  norms_.resize(trained_.groups.entries());
  for (std::size_t entry = 0; entry < norms_.size(); ++entry)
    norms_[entry] = unscale_ * rows_->norm(Row::kGradient, entry);
}

void HostUpdate::write_piece(std::size_t number, UpdateJournal& journal) {
  const plan::Stretch& piece = trained_.model->pieces().all[number];
  replica::GradientReader reader(gradients_, piece.entry,
                                 trained_.model->layout().entries()[piece.entry].dtype);
  divergence::Blind blind;
  update_piece(number, reader, blind, &journal);
  journal.wrote(number);
}

template <typename Observer>
void HostUpdate::update_slice(Observer observer, UpdateJournal* journal) {
  replica::for_each_piece(own_pieces(), gradients_,
                          [&](std::size_t number, replica::GradientReader& gradients) {
                            update_piece(number, gradients, observer, journal);
                            if (journal != nullptr) journal->wrote(number);
                          });
}

template <typename Observer>
void HostUpdate::update_piece(std::size_t number, replica::GradientReader& gradients,
                              Observer& observer, UpdateJournal* journal) {
  const plan::Stretch& piece = trained_.model->pieces().all[number];
  if (trained_.leaves_alone(piece.entry)) {
    measure_nothing(piece);
    if constexpr (Observer::kWatches) leave_alone(number, observer.compares);
    return;
  }
  Master master(trained_, piece);
  const GradientSource* const gathered = is_gathered_ ? &gradients_ : nullptr;
  flat::Elements update = elements_of(piece, master);
  if constexpr (Observer::kWatches) {
    const flat::Parities seen = master.parities_around([&] {
      update.gradient = master.widened(read(number, gradients), gathered);
      return update_elements<Observer>(number, update, journal);
    });
    observer.watch.saw(number, seen, observer.compares);
    if (observer.watch.keeps_applied())
      observer.watch.applied(number, flat::parity(update.dtype, update.gradient, piece.count));
  } else {
    update.gradient = master.widened(gradients.read(piece), gathered);
    update_elements<Observer>(number, update, journal);
    master.round();
  }
  measure(piece, {update.dtype, update.gradient});
  trained_.model->parts().parameters->publish(piece);
}

// Updates a piece, and its average. Returns parities if the observer watches.
template <typename Observer>
flat::Parities HostUpdate::update_elements(std::size_t number, flat::Elements elements,
                                           UpdateJournal* journal) {
  const plan::Stretch& piece = trained_.model->pieces().all[number];
  const Rule& rule = trained_.groups.rule_of(piece.entry);
  const AtStep step{trained_.groups.steps_of(piece.entry),
                    trusts_.empty() ? 1 : trusts_[piece.entry]};
  const bool averages = trained_.state.average() != nullptr;
  const double decay = trained_.extras.ema_decay;
  flat::Keeping keeping;
  if (journal != nullptr) keeping = keep(number, *journal);
  if (keeping.elements != nullptr) elements.keeping = &keeping;
  if constexpr (Observer::kWatches) {
    flat::Parities seen = rule.update_with_parity(elements, step);
    if (!averages) return seen;
    const auto more = flat::average_with_parity(averaged(elements, piece), decay);
    return {seen.before ^ more.before, seen.after ^ more.after};
  } else {
    rule.update(elements, step);
    if (averages) flat::average(averaged(elements, piece), decay);
    return {};
  }
}

// Without a gradient.
flat::Elements HostUpdate::elements_of(const plan::Stretch& piece, const Master& master) const {
  const plan::Layout& layout = trained_.state.layout();
  const std::size_t offset = replica::offset_of(layout, piece);
  flat::Elements elements;
  elements.dtype = layout.entries()[piece.entry].dtype;
  elements.parameter = master.values();
  elements.count = piece.count;
  for (std::size_t i = 0; i < trained_.state.count(); ++i)
    elements.state[trained_.state.state_of(i)] = trained_.state.memories()[i].data() + offset;
  return elements;
}

const std::byte* HostUpdate::weights_of(const plan::Stretch& piece) const {
  const replica::Replicated& model = *trained_.model;
  return model.parameters().data() + replica::offset_of(model.layout(), piece);
}

flat::Averaged HostUpdate::averaged(const flat::Elements& updated,
                                    const plan::Stretch& piece) const {
  const std::size_t offset = replica::offset_of(trained_.state.layout(), piece);
  return {updated.dtype, updated.parameter, trained_.state.average()->data() + offset,
          updated.count};
}

// A piece without a gradient on any worker does not change. If no update has seen it yet, its
// parity is taken here, for the next update to compare with.
void HostUpdate::leave_alone(std::size_t number, bool seen_before) {
  if (watch_.keeps_applied()) watch_.applied(number, 0);
  if (seen_before) return;
  const plan::Stretch& piece = trained_.model->pieces().all[number];
  const Master refreshed(trained_, piece);  // as the next update will find it
  watch_.rests(number, parity_at_rest(piece));
}

// The gradient of a piece. Notes a fault if it is not what was written.
const void* HostUpdate::read(std::size_t number, replica::GradientReader& gradients) {
  const void* const values =
      gradients.read_with_parity(number, trained_.model->pieces().all[number]);
  if (const auto worker = gradients.changed()) watch_.gradient_changed(number, *worker);
  return values;
}

void WrappedUpdate::write(UpdateJournal* journal) {
  check_at_rest();
  if (watch_.on()) watch_.begin(has_copies());
  replica::for_each_piece(own_pieces(), gradients_,
                          [&](std::size_t number, replica::GradientReader& gradients) {
                            hand_over(number, gradients);
                          });
  optimizer_->step(trained_.groups.steps() - 1);
  trained_.model->check_attached();  // it may have given parameters other memory
  const auto& pieces = trained_.model->pieces().all;
  for (std::size_t number = 0; number < pieces.size(); ++number) {
    if (watch_.on()) watch_.rests(number, parity_at_rest(pieces[number]));
    if (journal != nullptr) journal->wrote(number);
  }
}

void WrappedUpdate::hand_over(std::size_t number, replica::GradientReader& gradients) {
  const plan::Stretch& piece = trained_.model->pieces().all[number];
  if (trained_.leaves_alone(piece.entry)) {
    measure_nothing(piece);
    if (watch_.keeps_applied()) watch_.applied(number, 0);
    return;
  }
  const DType dtype = gradients.dtype();
  std::byte* const place =
      trained_.model->averages().data() + replica::offset_of(trained_.model->layout(), piece);
  const void* const values = gradients.read(piece);
  if (values != place) std::memcpy(place, values, piece.count * size_of(dtype));
  measure(piece, {dtype, place});
  if (watch_.keeps_applied()) watch_.applied(number, flat::parity(dtype, place, piece.count));
}

std::unique_ptr<Update> make_own_update(Trained& trained) {
  return std::make_unique<OwnUpdate>(trained);
}

std::unique_ptr<Update> make_shared_update(Trained& trained) {
  return std::make_unique<SharedUpdate>(trained);
}

std::unique_ptr<Update> make_wrapped_on_host(Trained& trained,
                                             std::shared_ptr<WrappedOptimizer> optimizer) {
  return std::make_unique<WrappedUpdate>(trained, std::move(optimizer));
}

}  // namespace lockstep::optim
