#include "torch/divergence/gradient_watch.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

namespace lockstep::divergence {
namespace {

// Pieces below which a second thread costs more than it saves.
constexpr std::int64_t kGrain = 4;

// A stretch of half-precision values as float32, some at a time: calls `body` with the first and with their number.
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
        seen.after ^= flat::copy_watched(entry.dtype, from, into, count);
        return;
      }
      const flat::Parities part = flat::add_watched(entry.dtype, into, from, count);
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
        flat::add_watched(entry.dtype, memory_ + at, right.memory_ + at, where.count);
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

}  // namespace lockstep::divergence
