// What one thread of a device does for norms. The device's compiler and, in the tests, the host's
// compile the same text.
//
//   values    what is measured: gradients, parameters, or the changes that LAMB would make
//   measure   how many values become one number: the sum of their squares, or the largest magnitude
//   lane      every kSquareLanes-th value of a block (fold.h). A thread measures kWidth neighbouring
//             lanes, whose values it loads as packs of at most 8 bytes
//   given     what the values of a pack are computed from. A thread loads `kAhead` of them before it
//             computes the first: the compiler does not move loads over a division
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

// Elements of a pack. 8 bytes for each thread, and 256 for a warp, were faster than 4 and than 16.
template <typename T>
inline constexpr int kPackWidth = sizeof(T) > 2 ? 8 / sizeof(T) : 4;

// Values of a chunk. none(): they are all zero. packed(): packs can be loaded, not only elements.
template <typename Of>
struct GradientValues {
  using Gradient = typename Of::Gradient;
  static constexpr int kWidth = kPackWidth<Gradient>;
  static constexpr std::uint32_t kAhead = 8;
  template <int kCount>
  using Given = Pack<Gradient, kCount>;
  const Gradient* from;
  typename Of::Real limit;

  LOCKSTEP_DEVICE static GradientValues of(const MeasureTask& task, const Chunk& chunk) {
    return {gradient_at<Of>(task.gradients, task.range.tables.places[chunk.entry], chunk),
            limit_in<Of>(task.limit, false)};
  }
  LOCKSTEP_DEVICE bool none() const { return from == nullptr; }
  LOCKSTEP_DEVICE bool packed() const { return aligned(from, kWidth * sizeof(Gradient)); }
  template <int kCount>
  LOCKSTEP_DEVICE void load(std::uint32_t i, Given<kCount>& given) const {
    given = load_constant_pack<kCount>(from + i, 0);
  }
  template <int kCount>
  LOCKSTEP_DEVICE double value(const Given<kCount>& given, int k) const {
    const auto value = kept_gradient<Of>(given.at[k]);
    return static_cast<double>(limit < 0 ? value : limited(value, limit));
  }
};

template <typename Of>
struct WeightValues {
  using Parameter = typename Of::Parameter;
  static constexpr int kWidth = kPackWidth<Parameter>;
  static constexpr std::uint32_t kAhead = 8;
  template <int kCount>
  using Given = Pack<Parameter, kCount>;
  const Parameter* from;

  LOCKSTEP_DEVICE static WeightValues of(const WeightsTask& task, const Chunk& chunk) {
    const EntryOffsets place = task.range.tables.places[chunk.entry];
    return {flat_at<Parameter>(task.parameters, place, chunk, false)};
  }
  LOCKSTEP_DEVICE bool none() const { return false; }
  LOCKSTEP_DEVICE bool packed() const { return aligned(from, kWidth * sizeof(Parameter)); }
  template <int kCount>
  LOCKSTEP_DEVICE void load(std::uint32_t i, Given<kCount>& given) const {
    given = load_constant_pack<kCount>(from + i, 0);
  }
  template <int kCount>
  LOCKSTEP_DEVICE double value(const Given<kCount>& given, int k) const {
    return static_cast<double>(Stored<Parameter>::load(given.at[k]));
  }
};

template <typename Of>
struct ChangeValues {
  using Kept = typename Of::Kept;
  using Gradient = typename Of::Gradient;
  static constexpr int kWidth = kPackWidth<Kept>;
  static constexpr std::uint32_t kAhead = 2;
  template <int kCount>
  struct Given {
    Pack<Gradient, kCount> gradient;
    Pack<Kept, kCount> kept, mean, square;
  };
  Parts<Of> parts;
  LambNumbers<typename Of::Real> numbers;

  LOCKSTEP_DEVICE static ChangeValues of(const ChangesTask& task, const Chunk& chunk) {
    const UpdateTask& update = task.update;
    return {Parts<Of>::of(update, update.range.tables.places[chunk.entry], chunk),
            in<typename Of::Real>(numbers_for<LambNumbers<double>>(update, chunk))};
  }
  LOCKSTEP_DEVICE bool none() const { return false; }
  // Kept values and states begin at multiples of 16 bytes; zeros are loaded the slow way.
  LOCKSTEP_DEVICE bool packed() const {
    return parts.gradient != nullptr && aligned(parts.gradient, kWidth * sizeof(Gradient));
  }
  template <int kCount>
  LOCKSTEP_DEVICE void load(std::uint32_t i, Given<kCount>& given) const {
    if (kCount > 1 || parts.gradient != nullptr)
      given.gradient = load_constant_pack<kCount>(parts.gradient + i, 0);
    given.kept = load_constant_pack<kCount>(parts.kept + i, 0);
    given.mean = load_constant_pack<kCount>(parts.states[0] + i, 0);
    given.square = load_constant_pack<kCount>(parts.states[1] + i, 0);
  }
  template <int kCount>
  LOCKSTEP_DEVICE double value(const Given<kCount>& given, int k) const {
    auto mean = Stored<Kept>::load(given.mean.at[k]);
    auto square = Stored<Kept>::load(given.square.at[k]);
    return static_cast<double>(lamb_change(Stored<Kept>::load(given.kept.at[k]),
                                           parts.applied(given.gradient.at[k]), mean, square,
                                           numbers, form_of(numbers)));
  }
};

// A thread's lanes over `count` values from `first` on, joined as the tree over all lanes joins
// them. A block of the layout has kSquareLanes / kWidth threads.
template <typename Measure, typename Values>
struct Lanes {
  static constexpr std::uint32_t kWidth = Values::kWidth;
  static constexpr std::uint32_t kThreads = kSquareLanes / kWidth;

  LOCKSTEP_DEVICE static double of(const Values& values, std::uint32_t first, std::uint32_t count,
                                   std::uint32_t thread) {
    const std::uint32_t begin = thread * kWidth;
    double lanes[kWidth] = {};
    const bool packed = values.packed() && count >= begin + kWidth;
    const std::uint32_t packs = packed ? (count - begin - kWidth) / kSquareLanes + 1 : 0;
    add_packs(values, first + begin, packs, lanes);
    for (std::uint32_t i = begin + packs * kSquareLanes; i < count; i += kSquareLanes) {
      for (std::uint32_t k = 0; k < kWidth && i + k < count; ++k) {
        typename Values::template Given<1> given = {};
        values.template load<1>(first + i + k, given);
        add(lanes[k], values.template value<1>(given, 0));
      }
    }
    LOCKSTEP_UNROLL
    for (std::uint32_t half = 1; half < kWidth; half *= 2) {
      LOCKSTEP_UNROLL
      for (std::uint32_t k = 0; k + half < kWidth; k += 2 * half)
        lanes[k] = Measure::join(lanes[k], lanes[k + half]);
    }
    return lanes[0];
  }

 private:
  LOCKSTEP_DEVICE static void add(double& lane, double value) {
    lane = Measure::join(lane, Measure::of(value));
  }
  LOCKSTEP_DEVICE static void add_packs(const Values& values, std::uint32_t at, std::uint32_t packs,
                                        double (&lanes)[kWidth]) {
    constexpr std::uint32_t kAhead = Values::kAhead;
    for (std::uint32_t i = 0; i < packs; i += kAhead) {
      typename Values::template Given<kWidth> given[kAhead];
      LOCKSTEP_UNROLL
      for (std::uint32_t j = 0; j < kAhead; ++j) {
        if (i + j < packs) values.template load<kWidth>(at + (i + j) * kSquareLanes, given[j]);
      }
      LOCKSTEP_UNROLL
      for (std::uint32_t j = 0; j < kAhead; ++j) {
        if (i + j >= packs) continue;
        LOCKSTEP_UNROLL
        for (std::uint32_t k = 0; k < kWidth; ++k)
          add(lanes[k], values.template value<kWidth>(given[j], static_cast<int>(k)));
      }
    }
  }
};

// A tile of the tree over blocks (plan::tree_sum): kTile numbers, or as many as are left. Level by
// level, a node becomes the sum of the two nodes below it. If the last node has no right neighbour,
// it goes up unchanged. kTile is a power of two, so a tile that is not the last is a node of the
// whole tree. So the sums of tiles can be added in tiles again.
//
// A run is what one thread has of a tile: neighbours that it joins by itself.
inline constexpr std::uint32_t kTile = 2048;
inline constexpr std::uint32_t kRun = 8;

// Numbers `begin` … of a tile of `count`. Behind its end there are none.
LOCKSTEP_DEVICE void load_run(const double* tile, std::uint32_t begin, std::uint32_t count,
                              double (&run)[kRun]) {
  LOCKSTEP_UNROLL
  for (std::uint32_t i = 0; i < kRun; ++i) run[i] = begin + i < count ? tile[begin + i] : 0;
}
template <typename Measure>
LOCKSTEP_DEVICE double join_run(double (&run)[kRun], std::uint32_t begin, std::uint32_t count) {
  LOCKSTEP_UNROLL
  for (std::uint32_t half = 1; half < kRun; half *= 2) {
    LOCKSTEP_UNROLL
    for (std::uint32_t i = 0; i + half < kRun; i += 2 * half) {
      if (begin + i + half < count) run[i] = Measure::join(run[i], run[i + half]);
    }
  }
  return run[0];
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
