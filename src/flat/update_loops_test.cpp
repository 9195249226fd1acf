#include "flat/update_loops.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "flat/fold.h"
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

// What one step reads and writes. `Step` names the states.
template <typename T>
struct State {
  std::vector<T> parameter = rough_elements<T>(kElements, 1);
  std::vector<T> gradient = rough_elements<T>(kElements, 2);
  std::array<std::vector<T>, kMostStates> states;

  explicit State(const SgdStep&) : State() {}
  explicit State(const AdamStep&) : State() {
    for (const std::size_t square : {1, 2}) make_square(states[square], 0);
  }
  // Larger than the square of every mean: nobody promises the bits of a NaN.
  explicit State(const RmsPropStep&) : State() { make_square(states[0], 2048); }
  explicit State(const AdagradStep&) : State() { make_square(states[0], 0); }
  explicit State(const LarsStep&) : State() {}
  explicit State(const LambStep&) : State() { make_square(states[1], 0); }

  bool operator==(const State& other) const {
    bool same = same_bits(parameter, other.parameter) && same_bits(gradient, other.gradient);
    for (std::size_t i = 0; i < kMostStates; ++i)
      same = same && same_bits(states[i], other.states[i]);
    return same;
  }
  Elements elements(std::size_t first, std::size_t count) {
    Elements all{dtype_of<T>(), parameter.data() + first, gradient.data() + first, {}, count};
    for (std::size_t i = 0; i < kMostStates; ++i) all.state[i] = states[i].data() + first;
    return all;
  }

 private:
  State() {
    for (std::size_t i = 0; i < kMostStates; ++i)
      states[i] = rough_elements<T>(kElements, static_cast<std::uint32_t>(3 + i));
    parameter[5] = gradient[6] = static_cast<T>(-0.0F);
  }
  static void make_square(std::vector<T>& state, Sum<T> least) {
    for (T& square : state) square = static_cast<T>(std::fabs(static_cast<Sum<T>>(square)) + least);
  }
};

// An element in the type in which it is computed.
template <typename T>
struct Element {
  using S = Sum<T>;
  S p, d;
  std::array<S, kMostStates> s;

  Element(const State<T>& state, std::size_t i, double weight_decay)
      : p(static_cast<S>(state.parameter[i])), d(static_cast<S>(state.gradient[i])) {
    for (std::size_t k = 0; k < kMostStates; ++k) s[k] = static_cast<S>(state.states[k][i]);
    if (weight_decay != 0) d = d + static_cast<S>(weight_decay) * p;
  }
  template <typename Step>
  void store(State<T>& state, std::size_t i, const Step& step) const {
    state.parameter[i] = static_cast<T>(p);
    for (std::size_t k = 0; k < kMostStates; ++k) {
      if (step.uses(k)) state.states[k][i] = static_cast<T>(s[k]);
    }
  }
};

// The header's formulas, one element and one rounding at a time.
template <typename T>
void define(State<T>& state, std::size_t i, const SgdStep& step) {
  using S = Sum<T>;
  Element<T> e(state, i, step.weight_decay);
  const auto momentum = static_cast<S>(step.momentum);
  S change = e.d;
  if (step.momentum != 0) {
    const S kept = momentum * e.s[0];
    e.s[0] = step.first ? e.d : kept + static_cast<S>(1 - step.dampening) * e.d;
    change = step.nesterov ? e.d + momentum * e.s[0] : e.s[0];
  }
  e.p = e.p - static_cast<S>(step.lr) * change;
  e.store(state, i, step);
}

template <typename T>
void define(State<T>& state, std::size_t i, const AdamStep& step) {
  using S = Sum<T>;
  Element<T> e(state, i, step.decoupled ? 0 : step.weight_decay);
  if (step.decoupled) e.p = e.p * static_cast<S>(1 - step.lr * step.weight_decay);
  const auto t = static_cast<double>(step.step);
  auto& [m, v, x] = e.s;
  m = static_cast<S>(step.beta1) * m + static_cast<S>(1 - step.beta1) * e.d;
  v = static_cast<S>(step.beta2) * v + static_cast<S>(1 - step.beta2) * e.d * e.d;
  x = step.amsgrad ? std::max(x, v) : v;
  const auto size = static_cast<S>(step.lr / (1 - std::pow(step.beta1, t)));
  const auto root = static_cast<S>(std::sqrt(1 - std::pow(step.beta2, t)));
  e.p = e.p - size * m / (std::sqrt(x) / root + static_cast<S>(step.eps));
  e.store(state, i, step);
}

template <typename T>
void define(State<T>& state, std::size_t i, const RmsPropStep& step) {
  using S = Sum<T>;
  Element<T> e(state, i, step.weight_decay);
  const auto lr = static_cast<S>(step.lr);
  const auto alpha = static_cast<S>(step.alpha);
  const auto fresh = static_cast<S>(1 - step.alpha);
  auto& [v, m, b] = e.s;
  v = alpha * v + fresh * e.d * e.d;
  m = step.centered ? alpha * m + fresh * e.d : S{0};
  const S c = std::sqrt(v - m * m) + static_cast<S>(step.eps);
  b = static_cast<S>(step.momentum) * b + e.d / c;
  e.p = e.p - (step.momentum == 0 ? lr * e.d / c : lr * b);
  e.store(state, i, step);
}

template <typename T>
void define(State<T>& state, std::size_t i, const AdagradStep& step) {
  using S = Sum<T>;
  Element<T> e(state, i, step.weight_decay);
  const auto lr =
      static_cast<S>(step.lr / (1 + static_cast<double>(step.step - 1) * step.lr_decay));
  e.s[0] = (step.step == 1 ? static_cast<S>(step.start) : e.s[0]) + e.d * e.d;
  e.p = e.p - lr * e.d / (std::sqrt(e.s[0]) + static_cast<S>(step.eps));
  e.store(state, i, step);
}

template <typename T>
void define(State<T>& state, std::size_t i, const LarsStep& step) {
  using S = Sum<T>;
  Element<T> e(state, i, step.weight_decay);
  const auto momentum = static_cast<S>(step.momentum);
  e.d = static_cast<S>(step.trust) * e.d;
  S change = e.d;
  if (step.momentum != 0) {
    const S kept = momentum * e.s[0];
    e.s[0] = step.first ? e.d : kept + static_cast<S>(1 - step.dampening) * e.d;
    change = step.nesterov ? e.d + momentum * e.s[0] : e.s[0];
  }
  e.p = e.p - static_cast<S>(step.lr) * change;
  e.store(state, i, step);
}

// Returns u.
template <typename T>
Sum<T> define(State<T>& state, std::size_t i, const LambStep& step) {
  using S = Sum<T>;
  Element<T> e(state, i, 0);
  const auto t = static_cast<double>(step.step);
  S& m = e.s[0];
  S& v = e.s[1];
  m = static_cast<S>(step.beta1) * m + static_cast<S>(1 - step.beta1) * e.d;
  v = static_cast<S>(step.beta2) * v + static_cast<S>(1 - step.beta2) * e.d * e.d;
  const auto mean = static_cast<S>(1 / (1 - std::pow(step.beta1, t)));
  const auto root = static_cast<S>(1 / std::sqrt(1 - std::pow(step.beta2, t)));
  S u = (mean * m) / (root * std::sqrt(v) + static_cast<S>(step.eps));
  if (step.weight_decay != 0) u = u + static_cast<S>(step.weight_decay) * e.p;
  e.p = e.p - static_cast<S>(step.lr * step.trust) * u;
  e.store(state, i, step);
  return u;
}

// A step and its definition must agree wherever the stretch lies.
template <typename T, typename Step>
void expect_definition(const Step& step) {
  const State<T> start(step);
  State<T> all = start;
  for (std::size_t i = 0; i < kElements; ++i) define(all, i, step);
  at_every_level([&] {
    State<T> whole = start;
    update(whole.elements(0, kElements), step);
    EXPECT_TRUE(whole == all);
    for (std::size_t first = 0; first < 64; ++first) {
      for (const std::size_t count : {0UL, 1UL, 7UL, 16UL, 33UL}) {
        State<T> part = start;
        State<T> expected = start;
        update(part.elements(first, count), step);
        for (std::size_t i = first; i < first + count; ++i) define(expected, i, step);
        ASSERT_TRUE(part == expected) << first << '+' << count;
      }
    }
  });
}

// A watched step has the same bits, and says the parities of the parameter and of the states that it uses.
template <typename T, typename Step>
void expect_with_parity(const Step& step) {
  const auto parity = [&](const State<T>& state) {
    flat::Parity sum = flat::parity(dtype_of<T>(), state.parameter.data(), kElements);
    for (std::size_t i = 0; i < kMostStates; ++i) {
      if (step.uses(i)) sum ^= flat::parity(dtype_of<T>(), state.states[i].data(), kElements);
    }
    return sum;
  };
  State<T> all(step);
  for (std::size_t i = 0; i < kElements; ++i) define(all, i, step);
  at_every_level([&] {
    State<T> state(step);
    const flat::Parity before = parity(state);
    const flat::Parities seen = update_with_parity(state.elements(0, kElements), step);
    EXPECT_TRUE(state == all);
    EXPECT_EQ(seen.before, before);
    EXPECT_EQ(seen.after, parity(state));
  });
}

template <typename T, typename Step>
void expect_in(const Step& step) {
  SCOPED_TRACE(name(dtype_of<T>()));
  expect_definition<T>(step);
  expect_with_parity<T>(step);
}

template <typename Step>
void expect_in_every_type(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    SCOPED_TRACE(&step - steps.data());
    expect_in<float>(step);
    expect_in<double>(step);
    expect_in<Float16>(step);
    expect_in<BFloat16>(step);
  }
}

TEST(UpdateKernels, SgdHasTheBitsOfItsDefinitionOnEveryCut) {
  expect_in_every_type<SgdStep>({{0.1},
                                 {0.1, 0, 0, 0.01},
                                 {0.1, 0.9, 0, 0.01, false, true},
                                 {0.1, 0.9, 0.2, 0, false, false},
                                 {0.1, 0.9, 0.2, 0.01, false, false},
                                 {0.1, 0.9, 0, 0.01, true, true},
                                 {0.1, 0.9, 0, 0.01, true, false}});
}

TEST(UpdateKernels, AdamHasTheBitsOfItsDefinitionOnEveryCut) {
  expect_in_every_type<AdamStep>({{0.01, 0.9, 0.999, 1e-4, 0, false, 1},
                                  {0.01, 0.9, 0.999, 1e-4, 0.1, false, 3},
                                  {0.01, 0.9, 0.999, 1e-4, 0.1, true, 100},
                                  {0.01, 0.9, 0.9, 1e-4, 0.1, false, 3, true},
                                  {0.01, 0.9, 0.9, 1e-4, 0.1, true, 3, true}});
}

TEST(UpdateKernels, RmsPropHasTheBitsOfItsDefinitionOnEveryCut) {
  expect_in_every_type<RmsPropStep>({{0.01, 0.9, 1e-4, 0, 0, false},
                                     {0.01, 0.9, 1e-4, 0.1, 0.9, false},
                                     {0.01, 0.9, 1e-4, 0, 0, true},
                                     {0.01, 0.9, 1e-4, 0.1, 0.9, true}});
}

TEST(UpdateKernels, LarsHasTheBitsOfItsDefinitionOnEveryCut) {
  expect_in_every_type<LarsStep>({{0.1, 0, 0, 0.01, false, false, 0.3},
                                  {0.1, 0.9, 0, 0.01, false, true, 0.3},
                                  {0.1, 0.9, 0.2, 0, false, false, 0.3},
                                  {0.1, 0.9, 0, 0.01, true, false, 0.3}});
}

TEST(UpdateKernels, LambHasTheBitsOfItsDefinitionOnEveryCut) {
  expect_in_every_type<LambStep>(
      {{0.01, 0.9, 0.999, 1e-4, 0, 1, 0.3}, {0.01, 0.9, 0.999, 1e-4, 0.1, 3, 1.7}});
}

template <typename T>
void expect_squares_of_change(const LambStep& step) {
  State<T> state(step);
  State<T> after = state;
  std::vector<Sum<T>> changes;
  for (std::size_t i = 0; i < kElements; ++i) changes.push_back(define(after, i, step));
  const State<T> before = state;
  at_every_level([&] {
    for (const std::size_t first : {0UL, 1UL, 5UL}) {
      for (const std::size_t count : {0UL, 1UL, 33UL, 1000UL, 1024UL}) {
        const double squares = squares_of_change(state.elements(first, count), step);
        EXPECT_EQ(squares, sum_of_squares(dtype_of<Sum<T>>(), changes.data() + first, count));
      }
    }
    EXPECT_TRUE(state == before);
  });
}

TEST(UpdateKernels, TheSquaresOfLambsChangeAreThoseOfItsUpdate) {
  for (const LambStep& step :
       {LambStep{0.01, 0.9, 0.999, 1e-4, 0, 1}, LambStep{0.01, 0.9, 0.999, 1e-4, 0.1, 3}}) {
    expect_squares_of_change<float>(step);
    expect_squares_of_change<double>(step);
    expect_squares_of_change<Float16>(step);
    expect_squares_of_change<BFloat16>(step);
  }
}

template <typename T>
void expect_averages() {
  const auto weights = rough_elements<T>(kElements, 1);
  const auto start = rough_elements<T>(kElements, 2);
  std::vector<T> expected = start;
  for (std::size_t i = 0; i < kElements; ++i)
    expected[i] = start[i] + static_cast<T>(1 - 0.99) * (weights[i] - start[i]);
  at_every_level([&] {
    std::vector<T> plain = start;
    std::vector<T> watched = start;
    average({dtype_of<T>(), weights.data(), plain.data(), kElements}, 0.99);
    const Parities seen =
        average_with_parity({dtype_of<T>(), weights.data(), watched.data(), kElements}, 0.99);
    EXPECT_TRUE(same_bits(plain, expected));
    EXPECT_TRUE(same_bits(watched, expected));
    EXPECT_EQ(seen.before, parity(dtype_of<T>(), start.data(), kElements));
    EXPECT_EQ(seen.after, parity(dtype_of<T>(), expected.data(), kElements));
  });
}

TEST(UpdateKernels, AnAverageOfWeightsHasTheBitsOfItsDefinition) {
  expect_averages<float>();
  expect_averages<double>();
}

TEST(UpdateKernels, AdagradHasTheBitsOfItsDefinitionOnEveryCut) {
  expect_in_every_type<AdagradStep>({{0.01, 0, 0, 0.5, 1e-4, 1}, {0.01, 0.1, 0.1, 0.5, 1e-4, 7}});
}

// Room for what a step overwrites.
template <typename T>
struct KeptState {
  std::vector<T> parameter = std::vector<T>(kElements);
  std::array<std::vector<T>, kMostStates> states;
  std::atomic<std::uint64_t> elements{0};
  Keeping keeping;

  KeptState() {
    keeping = {parameter.data(), {}, &elements};
    for (std::size_t i = 0; i < kMostStates; ++i) {
      states[i].resize(kElements);
      keeping.state[i] = states[i].data();
    }
  }
};

template <typename T, typename Step>
void expect_kept(const Step& step) {
  at_every_level([&] {
    for (const std::size_t count : {std::size_t{1}, std::size_t{17}, kElements}) {
      State<T> before(step);
      State<T> plain(step);
      State<T> keeps(step);
      KeptState<T> kept;
      Elements elements = keeps.elements(0, count);
      elements.keeping = &kept.keeping;
      const Parities seen = update_with_parity(elements, step);
      const Parities expected = update_with_parity(plain.elements(0, count), step);
      EXPECT_EQ(seen.before, expected.before);
      EXPECT_EQ(seen.after, expected.after);
      EXPECT_TRUE(keeps == plain) << "the same bits";
      EXPECT_EQ(kept.elements, count);
      const auto same = [&](const std::vector<T>& values, const std::vector<T>& old) {
        return std::memcmp(values.data(), old.data(), count * sizeof(T)) == 0;
      };
      EXPECT_TRUE(same(kept.parameter, before.parameter));
      for (std::size_t i = 0; i < kMostStates; ++i) {
        EXPECT_TRUE(!step.uses(i) || same(kept.states[i], before.states[i])) << i;
      }
    }
  });
}

TEST(UpdateKernels, KeepWhatTheyOverwrite) {
  expect_kept<float>(SgdStep{.lr = 0.1});
  expect_kept<float>(SgdStep{.lr = 0.1, .momentum = 0.9, .first = true});
  expect_kept<double>(SgdStep{.lr = 0.1, .momentum = 0.9});
  expect_kept<float>(AdamStep{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8});
  expect_kept<double>(
      AdamStep{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .amsgrad = true});
  expect_kept<float>(RmsPropStep{.lr = 0.1, .alpha = 0.9, .eps = 1e-8, .momentum = 0.9});
  expect_kept<float>(AdagradStep{.lr = 0.1, .eps = 1e-8, .step = 2});
  expect_kept<float>(LarsStep{.lr = 0.1, .trust = 0.5});
  expect_kept<float>(LambStep{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8});
}

// Memories that outlive a process, with a page each that cannot be written.
class TornUpdate {
 public:
  static constexpr std::size_t kMemories = 3;  // parameter and two states
  static constexpr std::size_t kPages = 4;
  TornUpdate() {
    const std::size_t bytes = (2 * kMemories * kPages + 1) * page_;
    memory_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (std::size_t i = 0; i < kMemories * count_; ++i)
      values(0)[i] = 1 + static_cast<float>(i % 1000);
    std::memcpy(old_.data(), values(0), old_.size() * sizeof(float));
  }
  ~TornUpdate() { ::munmap(memory_, (2 * kMemories * kPages + 1) * page_); }
  TornUpdate(const TornUpdate&) = delete;
  TornUpdate& operator=(const TornUpdate&) = delete;

  // In a process that is killed when it writes to the third page of a memory: those that change, then those that keep.
  template <typename Step>
  void run_until_killed(std::size_t at_memory, const Step& step) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGSEGV, SIG_DFL);  // a sanitizer would write a report
      ::mprotect(memory_ + (at_memory * kPages + 2) * page_, page_, PROT_READ);
      const std::vector<float> gradient(count_, 0.5F);
      Keeping keeping{values(kMemories), {}, elements()};
      Elements all{DType::kFloat32, values(0), gradient.data(), {}, count_};
      for (std::size_t i = 0; i + 1 < kMemories; ++i) {
        all.state[i] = values(1 + i);
        keeping.state[i] = values(kMemories + 1 + i);
      }
      all.keeping = &keeping;
      update_with_parity(all, step);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "it was to be killed";
  }

  // What is kept of each element that may have changed is what it was.
  void expect_old_values(std::size_t used) {
    const std::size_t kept = *elements();
    EXPECT_GT(kept, 0U);
    EXPECT_LT(kept, count_);
    bool any = false;
    for (std::size_t memory = 0; memory < used; ++memory) {
      const float* const old = old_.data() + memory * count_;
      EXPECT_EQ(std::memcmp(values(kMemories + memory), old, kept * sizeof(float)), 0) << memory;
      EXPECT_EQ(std::memcmp(values(memory) + kept, old + kept, (count_ - kept) * sizeof(float)), 0)
          << memory;
      any = any || std::memcmp(values(memory), old, kept * sizeof(float)) != 0;
    }
    EXPECT_TRUE(any) << "nothing has changed";
  }

 private:
  float* values(std::size_t memory) const {
    return reinterpret_cast<float*>(memory_ + memory * kPages * page_);
  }
  std::atomic<std::uint64_t>* elements() const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(memory_ + 2 * kMemories * kPages * page_);
  }

  const std::size_t page_ = static_cast<std::size_t>(::getpagesize());
  const std::size_t count_ = kPages * page_ / sizeof(float);
  std::byte* memory_;
  std::vector<float> old_ = std::vector<float>(kMemories * count_);
};

TEST(UpdateKernels, OfAKilledProcessHaveKeptWhatTheyChanged) {
  at_every_level([&] {
    for (const std::size_t memory : {0, 1, 3, 4}) {
      TornUpdate sgd;
      sgd.run_until_killed(memory, SgdStep{.lr = 0.1, .momentum = 0.9});
      sgd.expect_old_values(2);
    }
    for (const std::size_t memory : {0, 1, 2, 3, 4, 5}) {
      TornUpdate adam;
      adam.run_until_killed(memory, AdamStep{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8});
      adam.expect_old_values(3);
    }
  });
}

}  // namespace
}  // namespace lockstep::flat
