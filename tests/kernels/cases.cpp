#include "tests/kernels/cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "flat/fold.h"
#include "flat/parity.h"
#include "flat/update_loops.h"
#include "tests/kernels/model.h"

namespace lockstep::testing {

using namespace kernels;  // NOLINT: what the cases are made of

namespace {

constexpr double kDecay = 0.9;  // of averages

struct Words {
  std::vector<unsigned long long> before, after, applied;
};

// One step by the CPU's kernels, piece by piece. `Steps`: two steps of one kind.
template <typename Step>
class OnTheCpu {
 public:
  OnTheCpu(const Setting& setting, const std::vector<Step>& steps)
      : setting_(setting), steps_(steps) {}

  Words step(Model& model) const {
    const std::size_t pieces = model.pieces.all.size();
    Words words{std::vector<unsigned long long>(pieces), std::vector<unsigned long long>(pieces),
                std::vector<unsigned long long>(pieces)};
    std::vector<Bytes> gradients;
    for (const Bytes& gradient : model.gradients) gradients.push_back(applied(setting_, gradient));
    for (std::size_t i = 0; i < pieces; ++i) {
      const plan::Stretch& piece = model.pieces.all[i];
      const std::size_t at = piece.first * size_of(setting_.kept());
      const auto seen = update(model, piece, gradients[piece.entry].data() + at);
      words.before[i] = seen.before;
      words.after[i] = seen.after;
      words.applied[i] =
          flat::parity(setting_.kept(), gradients[piece.entry].data() + at, piece.count);
    }
    return words;
  }

 private:
  flat::Parities update(Model& model, const plan::Stretch& piece, const void* gradient) const {
    const std::size_t at = piece.first * size_of(setting_.kept());
    const std::size_t entry = piece.entry;
    std::byte* const parameter =
        model.parameters[entry].data() + piece.first * size_of(setting_.dtype);
    std::byte* const kept = setting_.masters ? model.masters[entry].data() + at : parameter;
    const Step step = trusted(steps_[entry % 2], trust_in(entry));
    flat::Elements elements{setting_.kept(), kept, gradient, {}, piece.count};
    for (std::size_t i = 0; i < flat::kMostStates; ++i)
      elements.state[i] = model.states[i][entry].data() + at;
    flat::Parities seen = flat::update_with_parity(elements, step);
    if (setting_.averaged) {
      const flat::Parities more = flat::average_with_parity(
          {setting_.kept(), kept, model.averages[entry].data() + at, piece.count}, kDecay);
      seen = {seen.before ^ more.before, seen.after ^ more.after};
    }
    if (!setting_.masters) return seen;
    seen.before ^= flat::parity(setting_.dtype, parameter, piece.count);
    flat::narrow(setting_.dtype, reinterpret_cast<const float*>(kept),
                 reinterpret_cast<std::uint16_t*>(parameter), piece.count);
    seen.after ^= flat::parity(setting_.dtype, parameter, piece.count);
    return seen;
  }

  const Setting& setting_;
  const std::vector<Step>& steps_;
};

// One step by the machine, the layout in two ranges of chunks; compared with the CPU's.
template <typename Step>
class StepCase {
 public:
  StepCase(Machine& machine, const Setting& setting, const std::vector<Step>& steps)
      : machine_(machine), setting_(setting), steps_(steps), model_(setting, kLeastSquare) {
    const There there = put(machine, model_, setting);
    task_.range = {there.tables, {}, setting.dtype};
    task_.gradients = there.gradients;
    task_.rule = flat::rule_of(steps[0]);
    using Numbers = decltype(flat::element::numbers_of(steps[0]));
    std::vector<Numbers> numbers;
    for (const Step& step : steps) numbers.push_back(flat::element::numbers_of(step));
    if (setting.factor != 0) {  // either way is as good
      std::memcpy(task_.few, numbers.data(), numbers.size() * sizeof(Numbers));
    } else {
      task_.numbers = machine.put(numbers);
    }
    task_.parameters = machine.put(model_.flat(model_.parameters, false));
    if (setting.masters)
      task_.masters = reinterpret_cast<float*>(machine.put(model_.flat(model_.masters, true)));
    for (std::size_t i = 0; i < flat::kMostStates; ++i) {
      if (in_use(i)) task_.states[i] = machine.put(model_.flat(model_.states[i], setting.masters));
    }
    task_.wide_states = setting.masters;
    if (setting.factor != 0) task_.factor = machine.put(std::vector<double>{setting.factor});
    task_.limit = setting.limit;
    std::vector<double> trusts;
    for (std::size_t i = 0; i < model_.parameters.size(); ++i) trusts.push_back(trust_in(i));
    task_.trusts = machine.put(trusts);
    if (setting.averaged) {
      task_.average = machine.put(model_.flat(model_.averages, setting.masters));
      task_.fresh = 1 - kDecay;
    }
    if (!setting.watched) return;
    const std::vector<unsigned long long> zeros(model_.pieces.all.size());
    task_.watched = {machine.put(zeros), machine.put(zeros), machine.put(zeros)};
  }

  flat::UpdateTask& task() { return task_; }
  void run() {
    const std::uint32_t all = model_.tables.all().end;
    for (const flat::ChunkRange range : {flat::ChunkRange{3, all}, flat::ChunkRange{0, 3}}) {
      task_.range.chunks = range;
      machine_.update(task_);
    }
  }
  void expect_the_cpus() {
    const Words words = OnTheCpu<Step>(setting_, steps_).step(model_);
    expect_memory();
    if (!setting_.watched) return;
    const std::size_t pieces = words.before.size();
    EXPECT_EQ(machine_.get(task_.watched.before, pieces), words.before);
    EXPECT_EQ(machine_.get(task_.watched.after, pieces), words.after);
    EXPECT_EQ(machine_.get(task_.watched.applied, pieces), words.applied);
  }
  void expect_memory() {
    expect(task_.parameters, model_.flat(model_.parameters, false), "parameters");
    if (setting_.masters) expect(task_.masters, model_.flat(model_.masters, true), "masters");
    if (setting_.averaged)
      expect(task_.average, model_.flat(model_.averages, setting_.masters), "averages");
    for (std::size_t i = 0; i < flat::kMostStates; ++i) {
      if (in_use(i))
        expect(task_.states[i], model_.flat(model_.states[i], setting_.masters), "states");
    }
  }

 private:
  // Whether one of the rules uses this state: only then there is memory for it.
  bool in_use(std::size_t state) const {
    return std::any_of(steps_.begin(), steps_.end(),
                       [&](const Step& step) { return step.uses(state); });
  }
  void expect(const void* there, const Bytes& expected, const char* what) {
    const Bytes actual = machine_.get(static_cast<const std::byte*>(there), expected.size());
    EXPECT_TRUE(same_bits(actual, expected)) << what;
  }

  // If the first state is a square: larger than the square of every mean. Nobody promises the bits
  // of a NaN.
  static constexpr bool kSquareFirst =
      std::is_same_v<Step, flat::RmsPropStep> || std::is_same_v<Step, flat::AdagradStep>;
  static constexpr float kLeastSquare = kSquareFirst ? 2048 : 0;

  Machine& machine_;
  Setting setting_;
  std::vector<Step> steps_;
  Model model_;
  flat::UpdateTask task_;
};

// Two rules at a time.
template <typename Step>
using Pairs = std::vector<std::vector<Step>>;
const Pairs<flat::SgdStep>& sgd_steps() {
  static const Pairs<flat::SgdStep> steps = {
      {{0.1}, {0.1, 0, 0, 0.01}},
      {{0.1, 0.9, 0.2, 0, false, false}, {0.1, 0, 0, 0.01}},
      {{0.1, 0.9, 0.2, 0.01, false, true}, {0.1, 0.9, 0.2, 0.01, false, false}},
      {{0.1, 0.9, 0, 0.01, true, true}, {0.1, 0.9, 0, 0.01, true, false}}};
  return steps;
}
const Pairs<flat::AdamStep>& adam_steps() {
  static const Pairs<flat::AdamStep> steps = {
      {{0.01, 0.9, 0.999, 1e-4, 0, false, 1}, {0.02, 0.8, 0.99, 1e-8, 0.1, false, 3}},
      {{0.01, 0.9, 0.999, 1e-8, 0.1, true, 100}, {0.01, 0.9, 0.95, 1e-8, 0, true, 1'000'000}},
      {{0.01, 0.9, 0.99, 1e-8, 0.1, true, 3, true}, {0.01, 0.9, 0.99, 1e-8, 0.1, false, 3, false}}};
  return steps;
}
const Pairs<flat::RmsPropStep>& rmsprop_steps() {
  static const Pairs<flat::RmsPropStep> steps = {
      {{0.01, 0.99, 1e-8, 0, 0, false}, {0.02, 0.9, 1e-4, 0.1, 0, true}},
      {{0.01, 0.99, 1e-8, 0.1, 0.9, false}, {0.01, 0.5, 1e-8, 0, 0, false}},
      {{0.01, 0.5, 1e-8, 0.1, 0.9, true}, {0.01, 0.5, 1e-4, 0, 0, true}}};
  return steps;
}
const Pairs<flat::AdagradStep>& adagrad_steps() {
  static const Pairs<flat::AdagradStep> steps = {
      {{0.01, 0, 0, 0.5, 1e-10, 1}, {0.02, 0.1, 0.1, 0.5, 1e-4, 7}}};
  return steps;
}
const Pairs<flat::LarsStep>& lars_steps() {
  static const Pairs<flat::LarsStep> steps = {
      {{0.1}, {0.1, 0.9, 0, 0.01, true, false}},
      {{0.1, 0.9, 0.2, 0.01, false, true}, {0.1, 0.9, 0.2, 0, false, false}}};
  return steps;
}
const Pairs<flat::LambStep>& lamb_steps() {
  static const Pairs<flat::LambStep> steps = {
      {{0.01, 0.9, 0.999, 1e-4, 0, 1}, {0.02, 0.8, 0.99, 1e-6, 0.1, 3}}};
  return steps;
}

void expect_steps(Machine& machine, const Setting& setting) {
  SCOPED_TRACE(describe(setting));
  const auto expect_all = [&](const auto& all) {
    for (const auto& steps : all) {
      SCOPED_TRACE(&steps - all.data());
      StepCase one(machine, setting, steps);
      one.run();
      one.expect_the_cpus();
    }
  };
  expect_all(sgd_steps());
  expect_all(adam_steps());
  expect_all(rmsprop_steps());
  expect_all(adagrad_steps());
  expect_all(lars_steps());
  expect_all(lamb_steps());
}

}  // namespace

void expect_updates_of_the_cpu(Machine& machine) {
  for (const Setting& setting : all_settings()) expect_steps(machine, setting);
}

void expect_watched_updates_of_the_cpu(Machine& machine) {
  for (Setting setting : all_settings()) {
    setting.watched = true;
    setting.workers = setting.loose ? 3 : 1;
    expect_steps(machine, setting);
  }
}

void expect_nothing_written_when_skipped(Machine& machine) {
  for (const bool masters : {false, true}) {
    Setting setting;
    setting.dtype = DType::kBFloat16;
    setting.masters = masters;
    StepCase one(machine, setting, adam_steps()[0]);
    std::uint32_t* const skip = machine.put(std::vector<std::uint32_t>{1});
    one.task().skip = skip;
    one.run();
    one.expect_memory();
    const std::uint32_t go = 0;
    machine.copy(skip, &go, sizeof(go));
    one.run();
    one.expect_the_cpus();
  }
}

// "long", "seven" and "a" of the layout.
static bool is_left_alone(std::size_t index) {
  return index % 3 == 1;
}

void expect_gradients_gathered(Machine& machine, bool all) {
  for (Setting setting : all_settings()) {
    if (setting.masters || setting.factor != 0 || !setting.loose) continue;
    for (const bool adds : {false, true}) {
      SCOPED_TRACE(describe(setting) + (adds ? " adds" : ""));
      const bool wide = setting.wide_gradients;
      const DType flat = setting.gradient();
      setting.wide_gradients = false;  // they are as backward made them; what they go to is wide
      const Model model(setting);
      const There there = put(machine, model, setting);
      std::vector<Bytes> expected;
      for (const plan::Entry& entry : model.layout.entries()) {
        const std::size_t index = expected.size();
        const Bytes given = in_type(flat, setting.dtype, model.gradients[index]);
        expected.push_back(rough_bytes(flat, entry.count, 77));
        if ((adds && entry.name == "without") || (!all && is_left_alone(index))) continue;
        const Bytes zeros(given.size());
        const Bytes& left = adds ? expected.back() : zeros;
        flat::combine(flat, ReduceOp::kSum, left.data(), given.data(), expected.back().data(),
                      entry.count);
      }
      std::vector<Bytes> before;
      for (const plan::Entry& entry : model.layout.entries())
        before.push_back(rough_bytes(flat, entry.count, 77));
      std::byte* const memory = machine.put(model.flat(before, wide));
      auto entries = machine.get(there.gradients.entries, expected.size());
      for (std::size_t i = 0; i < entries.size() && !all; ++i) {
        if (is_left_alone(i)) entries[i] = flat::left_alone();
      }
      machine.gather({{there.tables, model.tables.all(), setting.dtype},
                      machine.put(entries),
                      memory,
                      flat,
                      wide,
                      adds});
      const Bytes after = model.flat(expected, wide);
      EXPECT_TRUE(same_bits(machine.get(memory, after.size()), after));
      setting.wide_gradients = wide;
    }
  }
}

namespace {

// Types that take turns, in numbers that every step computes exactly: 4 and 3 become 0.5 · 4 + 3 = 5, and 10 becomes 10 − 5.
class Turns {
 public:
  explicit Turns(Machine& machine) : machine_(machine) {
    for (const plan::Entry& entry : layout_.entries())
      gradients_.push_back(
          machine.put(in_type(entry.dtype, DType::kFloat32, floats(entry.count, 3))));
    entries_ = machine.put(gradients_);
  }

  // Gathered to sums of float32, and updated, with float32 states and masters beside the half ones.
  void expect_all_of(DType dtype) {
    float* const sums = machine_.put(wide(dtype, 4));
    machine_.gather({range(dtype), entries_, sums, DType::kFloat32, true, true});
    EXPECT_EQ(machine_.get(sums, elements_), wide(dtype, 7));

    flat::UpdateTask task;
    task.range = range(dtype);
    task.rule = flat::UpdateRule::kSgd;
    const flat::SgdStep step{.lr = 1, .momentum = 0.5};
    task.numbers = machine_.put(std::vector{flat::element::numbers_of(step)});
    task.parameters = machine_.put(narrow(dtype, 10));
    float* const masters = machine_.put(wide(dtype, 10));
    if (flat::is_half(dtype)) task.masters = masters;
    float* const momentum = machine_.put(wide(dtype, 4));
    task.states[0] = momentum;
    task.wide_states = true;
    task.gradients = {dtype, nullptr, entries_};
    machine_.update(task);
    EXPECT_EQ(machine_.get(momentum, elements_), wide(dtype, 5));
    EXPECT_EQ(machine_.get(masters, elements_), wide(dtype, flat::is_half(dtype) ? 5 : 10));
    const Bytes expected = narrow(dtype, 5);
    EXPECT_EQ(machine_.get(static_cast<const std::byte*>(task.parameters), expected.size()),
              expected);
  }

 private:
  static Bytes floats(std::size_t count, float value) {
    const std::vector<float> values(count, value);
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    return {bytes, bytes + count * sizeof(float)};
  }
  // `value` where the entries of this type are, and 1 elsewhere: in the layout of sums, or in their own.
  std::vector<float> wide(DType dtype, float value) const {
    std::vector<float> all(elements_, 1);
    for (std::size_t i = 0; i < layout_.entries().size(); ++i) {
      if (layout_.entries()[i].dtype != dtype) continue;
      const auto first =
          static_cast<std::ptrdiff_t>(tables_.places()[i].wide_offset / sizeof(float));
      std::fill_n(all.begin() + first, layout_.entries()[i].count, value);
    }
    return all;
  }
  Bytes narrow(DType dtype, float value) const {
    Bytes all(layout_.bytes(), std::byte{1});
    for (const plan::Entry& entry : layout_.entries()) {
      if (entry.dtype != dtype) continue;
      const Bytes values = in_type(dtype, DType::kFloat32, floats(entry.count, value));
      std::copy(values.begin(), values.end(),
                all.begin() + static_cast<std::ptrdiff_t>(entry.offset));
    }
    return all;
  }
  flat::DeviceRange range(DType dtype) const {
    const auto types = tables_.by_type();
    const auto found = std::find_if(types.begin(), types.end(),
                                    [&](const auto& typed) { return typed.dtype == dtype; });
    return {view_, found->chunks, dtype};
  }

  Machine& machine_;
  plan::Layout layout_{{{"a", DType::kBFloat16, 100},
                        {"b", DType::kFloat32, 70},
                        {"c", DType::kBFloat16, 3'000},
                        {"d", DType::kFloat32, 5'000}}};
  flat::ChunkTables tables_{
      layout_, plan::plan_pieces(layout_, 1), {}, flat::ChunkTables::Order::kType};
  std::size_t elements_ = tables_.wide_bytes() / sizeof(float);
  flat::TablesView view_{machine_.put(tables_.chunks()), machine_.put(tables_.places())};
  std::vector<const void*> gradients_;
  const void* const* entries_ = nullptr;
};

}  // namespace

void expect_types_beside_each_other(Machine& machine) {
  Turns turns(machine);
  turns.expect_all_of(DType::kFloat32);
  turns.expect_all_of(DType::kBFloat16);
}

}  // namespace lockstep::testing
