#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "torch/optim/host_update.h"

namespace lockstep::optim {

void HostUpdate::count_step() {
  if (!std::exchange(now_.counted, true)) trained_.groups.count_step(trained_.absent());
}

// This worker may have lost another one where they meet for the last time. Then it knows everything but what follows
// from the others' numbers.
void HostUpdate::adopt(const UpdateNumbers& numbers) {
  const bool clips = trained_.extras.clip_norm > 0;
  if (!now_.began) {
    is_gathered_ = false;
    if (!gradients_.scale) gradients_.limit = trained_.extras.clip_value;
  }
  measures_ = false;
  clip_factor_ = numbers.clip_factor;
  unscale_ = now_.scaled ? static_cast<float>(1 / numbers.scale) : 1;
  if (clips || now_.scaled || trained_.groups.layer_norm() == LayerNorm::kGradient) {
    gradients_.factor = clip_factor_ * unscale_;
    gradients_.limit = trained_.extras.clip_value;
  }
  std::copy(numbers.trusts.begin(), numbers.trusts.end(), trusts_.begin());
}

// Where its owner had begun to write, a piece gets the values of before first.
void HostUpdate::finish(const UpdateNumbers& numbers, UpdateJournal& journal) {
  torch::NoGradGuard no_grad;
  const replica::ModelPlan& plan = trained_.model->parts().plan;
  for (std::size_t number = 0; number < plan.pieces.all.size() && numbers.skipped; ++number)
    journal.wrote(number);
  if (numbers.skipped) return;
  adopt(numbers);
  count_step();
  for (std::size_t number = 0; number < plan.pieces.all.size(); ++number) {
    if (journal.is_written(number)) continue;
    const plan::Stretch& piece = plan.pieces.all[number];
    UpdateJournal::Kept kept = journal.kept(number);
    if (!kept.bytes.empty()) {
      const Written written = written_of(piece);
      for (const UpdateJournal::Bytes& memory : std::span(written.memories).first(written.count)) {
        std::memcpy(memory.data(), kept.bytes.data(), memory.size() / piece.count * kept.elements);
        kept.bytes = kept.bytes.subspan(memory.size());
      }
    } else {
      const std::size_t first = replica::offset_of(plan.layout, piece);
      const std::size_t bytes = piece.count * size_of(plan.layout.entries()[piece.entry].dtype);
      trained_.model->parts().parameters->begin_update({first, first + bytes});
    }
    write_piece(number, journal);
  }
}

void HostUpdate::complete(bool skipped) {
  torch::NoGradGuard no_grad;
  if (!skipped) count_step();
  trained_.model->parts().parameters->renew(trained_.absent());
  norms_.clear();
  if (skipped) return;
  bump_versions();
  trained_.state.trust_masters();
}

HostUpdate::Written HostUpdate::written_of(const plan::Stretch& piece) const {
  const replica::Replicated& model = *trained_.model;
  const StateMemory& state = trained_.state;
  Written written;
  const auto add = [&](const replica::FlatMemory& memory, const plan::Layout& layout) {
    const std::size_t bytes = piece.count * size_of(layout.entries()[piece.entry].dtype);
    written.memories[written.count++] = {memory.data() + replica::offset_of(layout, piece), bytes};
  };
  add(model.parameters(), model.layout());
  const StateNames used = trained_.groups.rule_of(piece.entry).states();
  for (std::size_t i = 0; i < state.count(); ++i) {
    if (used[state.state_of(i)] == nullptr) continue;
    written.states[written.used++] = state.state_of(i);
    add(state.memories()[i], state.layout());
  }
  if (state.has_master(piece.entry)) add(*state.masters(), state.layout());
  if (state.average() != nullptr) add(*state.average(), state.layout());
  return written;
}

// A master is made of the weights, and the weights of it, so halves are kept whole before.
flat::Keeping HostUpdate::keep(std::size_t number, UpdateJournal& journal) const {
  const plan::Stretch& piece = trained_.model->pieces().all[number];
  const Written written = written_of(piece);
  const std::size_t by_update = trained_.state.has_master(piece.entry) ? 0 : 1 + written.used;
  const auto room = journal.keep(
      number, {piece.count, std::span(written.memories).first(written.count), by_update});
  flat::Keeping keeping;
  if (by_update == 0 || room.values == nullptr) return keeping;
  keeping.elements = room.elements;
  keeping.parameter = room.values;
  std::byte* next = room.values + written.memories[0].size();
  for (std::size_t i = 0; i < written.used; ++i) {
    keeping.state[written.states[i]] = next;
    next += written.memories[1 + i].size();
  }
  return keeping;
}

}  // namespace lockstep::optim
