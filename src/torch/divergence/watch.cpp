#include "torch/divergence/watch.h"

namespace lockstep::divergence {

void UpdateWatch::switch_on(bool on) {
  on_ = on;
  resting_.clear();
  applied_.clear();
}

void UpdateWatch::begin(bool copies) {
  resting_.resize(own_.size());
  applied_.resize(copies ? own_.size() : 0);
}

void UpdateWatch::saw(std::size_t piece, const flat::Parities& seen, bool compares) {
  flat::Parity& rests = resting_[piece - own_.begin];
  if (compares && seen.before != rests) note_changed(piece);
  rests = seen.after;
}

void UpdateWatch::applied(std::size_t piece, flat::Parity gradient) {
  applied_[piece - own_.begin] = gradient;
}

void UpdateWatch::gradient_changed(std::size_t piece, int worker) {
  faults_.note({Fault::What::kGradient, pieces_.all[piece], worker});
}

void UpdateWatch::expect(std::size_t piece, flat::Parity now) {
  if (now != resting_[piece - own_.begin]) note_changed(piece);
}

void UpdateWatch::saw_all(std::span<const flat::Parity> before, std::span<const flat::Parity> after,
                          std::span<const flat::Parity> gradients) {
  for (std::size_t i = 0; i < resting_.size(); ++i) {
    if (before[i] != resting_[i]) note_changed(own_.begin + i);
  }
  resting_.assign(after.begin(), after.end());
  applied_.assign(gradients.begin(), gradients.end());
}

void UpdateWatch::note_changed(std::size_t piece) {
  faults_.note({Fault::What::kParameter, pieces_.all[piece], worker_});
}

}  // namespace lockstep::divergence
