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
      Written memories;
      const std::size_t count = written_of(kept_part(piece, kept.first), memories);
      for (const UpdateJournal::Bytes& memory : std::span(memories).first(count)) {
        std::memcpy(memory.data(), kept.bytes.data(), memory.size());
        kept.bytes = kept.bytes.subspan(memory.size());
      }
    } else {
      const std::size_t first = replica::offset_of(plan.layout, piece);
      const std::size_t bytes = piece.count * size_of(plan.layout.entries()[piece.entry].dtype);
      trained_.model->parts().parameters->begin_update({first, first + bytes});
    }
    write_piece(number, kept.first, journal);
  }
}

// A master is made of a whole piece, so halves are kept by whole pieces.
plan::Stretch HostUpdate::kept_part(const plan::Stretch& piece, std::size_t first) const {
  const std::size_t rest = piece.count - first;
  const bool whole = trained_.state.has_master(piece.entry);
  return {piece.entry, piece.first + first, whole ? rest : std::min(kKeptElements, rest)};
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

std::size_t HostUpdate::written_of(const plan::Stretch& piece, Written& memories) const {
  const replica::Replicated& model = *trained_.model;
  std::size_t count = 0;
  const auto add = [&](const replica::FlatMemory& memory, const plan::Layout& layout) {
    const std::size_t bytes = piece.count * size_of(layout.entries()[piece.entry].dtype);
    memories[count++] = {memory.data() + replica::offset_of(layout, piece), bytes};
  };
  add(model.parameters(), model.layout());
  const bool has_master = trained_.state.has_master(piece.entry);
  for (const replica::FlatMemory& memory : trained_.state.memories()) {
    if (&memory != trained_.state.masters() || has_master) add(memory, trained_.state.layout());
  }
  return count;
}

}  // namespace lockstep::optim
