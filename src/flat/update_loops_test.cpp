#include "flat/update_loops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/elements.h"
#include "tests/support/levels.h"

namespace lockstep::flat {
namespace {

using testing::at_every_level;
using testing::BFloat16;
using testing::dtype_of;
using testing::Float16;
using testing::rough_elements;
using testing::same_bits;
using testing::Sum;

constexpr std::size_t kElements = 1200;  // a piece and a bit

// What one step reads and writes.
template <typename T>
struct State {
  std::vector<T> parameter = rough_elements<T>(kElements, 1);
  std::vector<T> gradient = rough_elements<T>(kElements, 2);
  std::vector<T> first = rough_elements<T>(kElements, 3);
  std::vector<T> second = rough_elements<T>(kElements, 4);

  State() {
    for (T& square : second) square = static_cast<T>(std::fabs(static_cast<Sum<T>>(square)));
    parameter[5] = gradient[6] = static_cast<T>(-0.0F);
  }
  bool operator==(const State& other) const {
    return same_bits(parameter, other.parameter) && same_bits(gradient, other.gradient) &&
           same_bits(first, other.first) && same_bits(second, other.second);
  }
};

// The header's formulas, one element and one rounding at a time.
template <typename T>
void sgd_by_definition(State<T>& state, std::size_t i, const SgdStep& step) {
  using S = Sum<T>;
  const auto momentum = static_cast<S>(step.momentum);
  const auto p = static_cast<S>(state.parameter[i]);
  auto d = static_cast<S>(state.gradient[i]);
  if (step.weight_decay != 0) d = d + static_cast<S>(step.weight_decay) * p;
  S change = d;
  if (step.momentum != 0) {
    const S kept = momentum * static_cast<S>(state.first[i]);
    const S b = step.first ? d : kept + static_cast<S>(1 - step.dampening) * d;
    state.first[i] = static_cast<T>(b);
    change = step.nesterov ? d + momentum * b : b;
  }
  state.parameter[i] = static_cast<T>(p - static_cast<S>(step.lr) * change);
}

template <typename T>
void adam_by_definition(State<T>& state, std::size_t i, const AdamStep& step) {
  using S = Sum<T>;
  auto p = static_cast<S>(state.parameter[i]);
  auto d = static_cast<S>(state.gradient[i]);
  if (step.decoupled) {
    p = p * static_cast<S>(1 - step.lr * step.weight_decay);
  } else if (step.weight_decay != 0) {
    d = d + static_cast<S>(step.weight_decay) * p;
  }
  const auto t = static_cast<double>(step.step);
  const S m = static_cast<S>(step.beta1) * static_cast<S>(state.first[i]) +
              static_cast<S>(1 - step.beta1) * d;
  const S v = static_cast<S>(step.beta2) * static_cast<S>(state.second[i]) +
              static_cast<S>(1 - step.beta2) * d * d;
  const auto size = static_cast<S>(step.lr / (1 - std::pow(step.beta1, t)));
  const auto root = static_cast<S>(std::sqrt(1 - std::pow(step.beta2, t)));
  state.first[i] = static_cast<T>(m);
  state.second[i] = static_cast<T>(v);
  state.parameter[i] =
      static_cast<T>(p - size * m / (std::sqrt(v) / root + static_cast<S>(step.eps)));
}

// `run(state, first, count)` and `define(state, i)` must agree wherever the stretch lies.
template <typename T, typename Run, typename Define>
void expect_definition(const Run& run, const Define& define) {
  SCOPED_TRACE(name(dtype_of<T>()));
  const State<T> start;
  State<T> all = start;
  for (std::size_t i = 0; i < kElements; ++i) define(all, i);
  at_every_level([&] {
    State<T> whole = start;
    run(whole, 0, kElements);
    EXPECT_TRUE(whole == all);
    for (std::size_t first = 0; first < 64; ++first) {
      for (const std::size_t count : {0UL, 1UL, 7UL, 16UL, 33UL}) {
        State<T> part = start;
        State<T> expected = start;
        run(part, first, count);
        for (std::size_t i = first; i < first + count; ++i) define(expected, i);
        ASSERT_TRUE(part == expected) << first << '+' << count;
      }
    }
  });
}

// A watched step has the same bits, and says the parities of the first `in_place` of parameter, first and second state.
template <typename T, typename Run, typename Define>
void expect_with_parity(const Run& run, int in_place, const Define& define) {
  SCOPED_TRACE(name(dtype_of<T>()));
  const auto parity = [&](const State<T>& state) {
    const std::vector<T>* const lists[] = {&state.parameter, &state.first, &state.second};
    flat::Parity sum = 0;
    for (int i = 0; i < in_place; ++i)
      sum ^= flat::parity(dtype_of<T>(), lists[i]->data(), kElements);
    return sum;
  };
  State<T> all;
  for (std::size_t i = 0; i < kElements; ++i) define(all, i);
  at_every_level([&] {
    State<T> state;
    const flat::Parity before = parity(state);
    const flat::Parities seen = run(state);
    EXPECT_TRUE(state == all);
    EXPECT_EQ(seen.before, before);
    EXPECT_EQ(seen.after, parity(state));
  });
}

template <typename T>
void expect_sgd(const SgdStep& step) {
  expect_definition<T>(
      [&](State<T>& state, std::size_t first, std::size_t count) {
        void* momentum = step.momentum == 0 ? nullptr : state.first.data() + first;
        sgd(dtype_of<T>(), state.parameter.data() + first, state.gradient.data() + first, momentum,
            count, step);
      },
      [&](State<T>& state, std::size_t i) { sgd_by_definition(state, i, step); });
  expect_with_parity<T>(
      [&](State<T>& state) {
        return sgd_with_parity(dtype_of<T>(), state.parameter.data(), state.gradient.data(),
                               state.first.data(), kElements, step);
      },
      step.momentum == 0 ? 1 : 2,
      [&](State<T>& state, std::size_t i) { sgd_by_definition(state, i, step); });
}

TEST(UpdateKernels, SgdHasTheBitsOfItsDefinitionOnEveryCut) {
  const SgdStep steps[] = {{0.1},
                           {0.1, 0, 0, 0.01},
                           {0.1, 0.9, 0, 0.01, false, true},
                           {0.1, 0.9, 0.2, 0, false, false},
                           {0.1, 0.9, 0.2, 0.01, false, false},
                           {0.1, 0.9, 0, 0.01, true, true},
                           {0.1, 0.9, 0, 0.01, true, false}};
  for (const SgdStep& step : steps) {
    SCOPED_TRACE(&step - steps);
    expect_sgd<float>(step);
    expect_sgd<double>(step);
    expect_sgd<Float16>(step);
    expect_sgd<BFloat16>(step);
  }
}

template <typename T>
void expect_adam(const AdamStep& step) {
  expect_definition<T>(
      [&](State<T>& state, std::size_t first, std::size_t count) {
        adam(dtype_of<T>(), state.parameter.data() + first, state.gradient.data() + first,
             {state.first.data() + first, state.second.data() + first}, count, step);
      },
      [&](State<T>& state, std::size_t i) { adam_by_definition(state, i, step); });
  expect_with_parity<T>(
      [&](State<T>& state) {
        return adam_with_parity(dtype_of<T>(), state.parameter.data(), state.gradient.data(),
                                {state.first.data(), state.second.data()}, kElements, step);
      },
      3, [&](State<T>& state, std::size_t i) { adam_by_definition(state, i, step); });
}

TEST(UpdateKernels, AdamHasTheBitsOfItsDefinitionOnEveryCut) {
  const AdamStep steps[] = {{0.01, 0.9, 0.999, 1e-4, 0, false, 1},
                            {0.01, 0.9, 0.999, 1e-4, 0.1, false, 3},
                            {0.01, 0.9, 0.999, 1e-4, 0.1, true, 100}};
  for (const AdamStep& step : steps) {
    SCOPED_TRACE(&step - steps);
    expect_adam<float>(step);
    expect_adam<double>(step);
    expect_adam<Float16>(step);
    expect_adam<BFloat16>(step);
  }
}

}  // namespace
}  // namespace lockstep::flat
