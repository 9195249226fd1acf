#include "torch/divergence/watch.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace lockstep::divergence {
namespace {

// With fewer pieces a second thread costs more than it saves.
constexpr std::int64_t kGrain = 4;

// Calls `body` with a stretch of half-type values as float32, a strip at a time.
template <typename Body>
void widened(DType half, const std::byte* from, std::size_t count, const Body& body) {
  std::array<float, flat::kStripElements> row;
  for (std::size_t first = 0; first < count; first += row.size()) {
    const std::size_t part = std::min(row.size(), count - first);
    flat::widen(half, from + first * size_of(half), row.data(), part);
    body(row.data(), first, part);
  }
}

}  // namespace

std::string Fault::text(const plan::Layout& layout) const {
  const std::string& name = layout.entries()[where.entry].name;
  const bool gradient = what == What::kGradient;
  return fmt::format(
      "a bit of {}{}{} (elements {} to {}) has changed in the memory of worker {} {}",
      gradient ? "the gradient of " : "", name, gradient ? "" : " or of its optimizer state",
      where.first, where.first + where.count - 1, worker,
      gradient ? "between backward and update" : "since the update before");
}

std::string Fault::remedy() const {
  if (what == What::kGradient)
    return "Go on from the last checkpoint. If it happens again, go on without that machine";
  return "If the program writes to parameters between two steps, as max_norm and clamping do, that "
         "is the cause: limit weights inside the model's forward(), or train with the drop-in "
         "loop. "
         "If not, the memory is bad: go on from the last checkpoint, and if it happens again, "
         "without that machine";
}

template <typename Body>
void GradientWatch::for_each_piece(std::size_t number, const Body& body) const {
  const auto first = static_cast<std::int64_t>(pieces_.first_of_entry[number]);
  const auto end = static_cast<std::int64_t>(pieces_.first_of_entry[number + 1]);
  at::parallel_for(first, end, kGrain, [&](std::int64_t begin, std::int64_t stop) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(stop); ++i)
      body(i, pieces_.all[i]);
  });
}

void GradientWatch::move_in(std::size_t number, const plan::Entry& entry, const void* gradient,
                            DType given, bool adds) const {
  const auto* const made = static_cast<const std::byte*>(gradient);
  for_each_piece(number, [&](std::size_t piece, const plan::Stretch& where) {
    flat::Parities seen;
    const auto move = [&](const void* from, std::size_t first, std::size_t count) {
      std::byte* const into = memory_ + entry.offset + (where.first + first) * size_of(entry.dtype);
      if (!adds) {
        seen.after ^= copy_(entry.dtype, from, into, count);
        return;
      }
      const flat::Parities part = flat::add_with_parity(entry.dtype, into, from, count);
      seen.before ^= part.before;
      seen.after ^= part.after;
    };
    const std::byte* const from = made + where.first * size_of(given);
    if (given != entry.dtype) {
      widened(given, from, where.count, move);
    } else {
      move(from, 0, where.count);
    }
    if (adds) expect(piece, seen.before);
    parities_[piece] = seen.after;
  });
}

void GradientWatch::add(std::size_t number, const plan::Entry& entry,
                        const GradientWatch& right) const {
  for_each_piece(number, [&](std::size_t piece, const plan::Stretch& where) {
    const std::size_t at = entry.offset + where.first * size_of(entry.dtype);
    right.expect(piece, flat::parity(entry.dtype, right.memory_ + at, where.count));
    const flat::Parities seen =
        flat::add_with_parity(entry.dtype, memory_ + at, right.memory_ + at, where.count);
    expect(piece, seen.before);
    parities_[piece] = seen.after;
  });
}

void GradientWatch::look_at(std::size_t number, const plan::Entry& entry) const {
  for_each_piece(number, [&](std::size_t piece, const plan::Stretch& where) {
    const std::byte* const at = memory_ + entry.offset + where.first * size_of(entry.dtype);
    parities_[piece] = flat::parity(entry.dtype, at, where.count);
  });
}

void GradientWatch::expect(std::size_t piece, flat::Parity seen) const {
  if (seen != parities_[piece]) faults_.note({Fault::What::kGradient, pieces_.all[piece], worker_});
}

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
