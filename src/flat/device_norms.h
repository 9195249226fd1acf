// What one thread of a device does for norms. The device's compiler and, in the tests, the host's
// compile the same text.
//
//   values    what is measured: gradients, parameters, or the changes that LAMB would make
//   measure   how many values become one number: the sum of their squares, or the largest magnitude
//   lane      what one thread measures of a block: every kSquareLanes-th value (fold.h)
//   given     what a value is computed from. A thread loads `kAhead` of them before it computes the
//             first value, if that is more than 1: the compiler does not move loads over a division
//   tile      kTile numbers of a row, which one block of threads makes one number
#pragma once

#include "flat/device_chunk.h"
#include "flat/fold.h"

namespace lockstep::flat::element {

struct SumOfSquares {
  LOCKSTEP_DEVICE static double of(double value) { return multiply(value, value); }
  LOCKSTEP_DEVICE static double join(double a, double b) { return add(a, b); }
  LOCKSTEP_DEVICE static double norm(double all) { return square_root(all); }
};
// A NaN is larger than everything else.
struct LargestMagnitude {
  LOCKSTEP_DEVICE static double of(double value) { return value < 0 ? -value : value; }
  LOCKSTEP_DEVICE static double join(double a, double b) { return b > a || b != b ? b : a; }
  LOCKSTEP_DEVICE static double norm(double all) { return all; }
};

// Values of a chunk; none() if they are all zero.
template <typename Of>
struct GradientValues {
  using Given = typename Of::Gradient;
  static constexpr std::uint32_t kAhead = 1;
  const Given* from;
  typename Of::Real limit;

  LOCKSTEP_DEVICE static GradientValues of(const MeasureTask& task, const Chunk& chunk) {
    return {gradient_at<Of>(task.gradients, task.range.tables.places[chunk.entry], chunk),
            limit_in<Of>(task.limit, false)};
  }
  LOCKSTEP_DEVICE bool none() const { return from == nullptr; }
  LOCKSTEP_DEVICE Given load(std::uint32_t i) const { return load_constant_pack<1>(from, i).at[0]; }
  LOCKSTEP_DEVICE double value(const Given& given) const {
    const auto value = kept_gradient<Of>(given);
    return static_cast<double>(limit < 0 ? value : limited(value, limit));
  }
};

template <typename Of>
struct WeightValues {
  using Parameter = typename Of::Parameter;
  using Given = Parameter;
  static constexpr std::uint32_t kAhead = 1;
  const Parameter* from;

  LOCKSTEP_DEVICE static WeightValues of(const WeightsTask& task, const Chunk& chunk) {
    const EntryOffsets place = task.range.tables.places[chunk.entry];
    return {flat_at<Parameter>(task.parameters, place, chunk, false)};
  }
  LOCKSTEP_DEVICE bool none() const { return false; }
  LOCKSTEP_DEVICE Given load(std::uint32_t i) const { return load_constant_pack<1>(from, i).at[0]; }
  LOCKSTEP_DEVICE double value(const Given& given) const {
    return static_cast<double>(Stored<Parameter>::load(given));
  }
};

template <typename Of>
struct ChangeValues {
  using Kept = typename Of::Kept;
  struct Given {
    typename Of::Gradient gradient;
    Kept kept, mean, square;
  };
  static constexpr std::uint32_t kAhead = 2;
  Parts<Of> parts;
  LambNumbers<typename Of::Real> numbers;

  LOCKSTEP_DEVICE static ChangeValues of(const ChangesTask& task, const Chunk& chunk) {
    const UpdateTask& update = task.update;
    return {Parts<Of>::of(update, update.range.tables.places[chunk.entry], chunk),
            in<typename Of::Real>(numbers_for<LambNumbers<double>>(update, chunk))};
  }
  LOCKSTEP_DEVICE bool none() const { return false; }
  LOCKSTEP_DEVICE Given load(std::uint32_t i) const {
    Given given = {};
    if (parts.gradient != nullptr) given.gradient = load_constant_pack<1>(parts.gradient, i).at[0];
    given.kept = load_constant_pack<1>(parts.kept, i).at[0];
    given.mean = load_constant_pack<1>(parts.states[0], i).at[0];
    given.square = load_constant_pack<1>(parts.states[1], i).at[0];
    return given;
  }
  LOCKSTEP_DEVICE double value(const Given& given) const {
    auto mean = Stored<Kept>::load(given.mean);
    auto square = Stored<Kept>::load(given.square);
    return static_cast<double>(lamb_change(Stored<Kept>::load(given.kept),
                                           parts.applied(given.gradient), mean, square, numbers,
                                           form_of(numbers)));
  }
};

// One lane over `count` values from `first` on.
template <typename Measure, typename Values>
LOCKSTEP_DEVICE double lane_of(const Values& values, std::uint32_t first, std::uint32_t count,
                               std::uint32_t lane) {
  constexpr std::uint32_t kAhead = Values::kAhead;
  double all = 0;
  if constexpr (kAhead == 1) {
    LOCKSTEP_UNROLL_16
    for (std::uint32_t i = lane; i < count; i += kSquareLanes)
      all = Measure::join(all, Measure::of(values.value(values.load(first + i))));
  } else {
    for (std::uint32_t i = lane; i < count; i += kAhead * kSquareLanes) {
      typename Values::Given given[kAhead] = {};
      LOCKSTEP_UNROLL
      for (std::uint32_t ahead = 0; ahead < kAhead; ++ahead) {
        const std::uint32_t at = i + ahead * kSquareLanes;
        if (at < count) given[ahead] = values.load(first + at);
      }
      LOCKSTEP_UNROLL
      for (std::uint32_t ahead = 0; ahead < kAhead; ++ahead) {
        if (i + ahead * kSquareLanes < count)
          all = Measure::join(all, Measure::of(values.value(given[ahead])));
      }
    }
  }
  return all;
}

// A tile of the tree over blocks (plan::tree_sum): kTile numbers, or as many as are left. Level by
// level, a node becomes the sum of the two nodes below it. If the last node has no right neighbour,
// it goes up unchanged. kTile is a power of two, so a tile that is not the last is a node of the
// whole tree. So the sums of tiles can be added in tiles again.
inline constexpr std::uint32_t kTile = 2048;
template <typename Measure>
LOCKSTEP_DEVICE void tile_level(double* tile, std::uint32_t count, std::uint32_t half,
                                Thread thread) {
  for (std::uint32_t i = thread.index * 2 * half; i + half < count; i += thread.of * 2 * half)
    tile[i] = Measure::join(tile[i], tile[i + half]);
}

// The same formula as on a CPU, and as torch::nn::utils::clip_grad_norm_. `norm` is that before
// unscaling.
LOCKSTEP_DEVICE Clipping clipping_of(double norm, double most, double unscale) {
  Clipping clipping;
  clipping.norm = multiply(norm, unscale);
  const double factor = element::divide(most, add(clipping.norm, 1e-6));
  clipping.factor = multiply(most > 0 && factor < 1 ? factor : 1, unscale);
  clipping.skip = clipping.norm - clipping.norm == 0 ? 0 : 1;
  return clipping;
}

// The numbers of an entry in a row: the first, and how many.
struct EntryRow {
  double* first;
  std::size_t count;

  LOCKSTEP_DEVICE static EntryRow of(const EntryNormsTask& task, std::uint32_t row,
                                     std::uint32_t entry) {
    const std::size_t begin = task.places[entry].first_block;
    const std::size_t end =
        entry + 1 < task.entries ? task.places[entry + 1].first_block : task.blocks;
    return {task.first_row + row * task.blocks + begin, end - begin};
  }
};

LOCKSTEP_DEVICE void find_trust(const TrustTask& task, std::uint32_t entry) {
  const double factor = task.factor == nullptr ? 1.0 : *task.factor;
  const double other = multiply(factor, task.others[entry]);
  task.trusts[entry] = task.rules[entry].of(task.weights[entry], other);
}

// Calls with<Measure>() for the measure of a task.
template <typename With>
void choose_measure(Measure measure, const With& with) {
  if (measure == Measure::kLargest) return with.template operator()<LargestMagnitude>();
  return with.template operator()<SumOfSquares>();
}

}  // namespace lockstep::flat::element
