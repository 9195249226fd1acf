#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "flat/fold.h"
#include "flat/update_loops.h"
#include "plan/tree.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/model.h"

namespace lockstep::testing {

using namespace kernels;  // NOLINT: what the cases are made of

namespace {

// Calls measure(entry, first, count) for each block.
template <typename Of>
std::vector<double> row_of(const plan::Layout& layout, const Of& measure) {
  std::vector<double> row(layout.blocks());
  for (std::size_t block = 0; block < row.size(); ++block) {
    const plan::Stretch stretch = layout.block(block);
    row[block] = measure(stretch.entry, stretch.first, stretch.count);
  }
  return row;
}

// A row of flat::sum_of_squares or flat::largest over some values.
template <typename Of>
std::vector<double> row_of(const Model& model, DType dtype, const std::vector<Bytes>& values,
                           const Of& measure) {
  return row_of(model.layout, [&](std::size_t entry, std::size_t first, std::size_t count) {
    return measure(dtype, values[entry].data() + first * size_of(dtype), count);
  });
}

// The gradients as they are measured: limited, but without a factor.
std::vector<Bytes> measured(Setting setting, const Model& model) {
  setting.factor = 0;
  std::vector<Bytes> all;
  for (const Bytes& gradient : model.gradients) all.push_back(applied(setting, gradient));
  return all;
}

flat::Clipping clip(Machine& machine, const double* row, std::size_t blocks, double most,
                    double unscale = 1, flat::Measure measure = flat::Measure::kSquares) {
  flat::ClipTask task{row, blocks, most};
  task.unscale = unscale;
  task.measure = measure;
  task.partials = machine.put(std::vector<double>(blocks / 2048 + 1));
  task.arrived = machine.put(std::vector<std::uint32_t>{0});
  task.result = machine.put(std::vector<flat::Clipping>(1));
  machine.clip(task);
  machine.clip(task);  // and again: it leaves its scratch as it wants to find it
  return machine.get(task.result, 1)[0];
}

void expect_clipping(Machine& machine, const std::vector<double>& row, double norm,
                     flat::Measure measure) {
  const double* const there = machine.put(row);
  const auto clipped = [&](double most, double unscale) {
    return clip(machine, there, row.size(), most, unscale, measure);
  };
  const flat::Clipping half = clipped(norm / 2, 1);
  EXPECT_EQ(half.norm, norm);
  EXPECT_EQ(half.factor, norm / 2 / (norm + 1e-6));
  EXPECT_EQ(half.skip, 0U);
  EXPECT_EQ(clipped(2 * norm, 1).factor, 1);
  EXPECT_EQ(clipped(0, 1).factor, 1);
  const flat::Clipping scaled = clipped(norm / 8, 0.25);
  EXPECT_EQ(scaled.norm, norm * 0.25);
  EXPECT_EQ(scaled.factor, norm / 8 / (norm * 0.25 + 1e-6) * 0.25);
  EXPECT_EQ(clipped(0, 0.25).factor, 0.25);
}

// The rows of a model, of which norms by entry and trusts are made.
class Rows {
 public:
  Rows(Machine& machine, const Setting& setting)
      : machine_(machine),
        setting_(setting),
        model_(setting),
        there_(put(machine, model_, setting)) {
    rows_ = machine.put(std::vector<double>(3 * model_.layout.blocks(), 7));
  }

  std::vector<double> gradients() {
    machine_.measure({range(), there_.gradients, setting_.masters, row(0), flat::Measure::kSquares,
                      setting_.limit});
    return expected(
        0, row_of(model_, setting_.kept(), measured(setting_, model_), flat::sum_of_squares));
  }
  std::vector<double> weights() {
    std::byte* const parameters = machine_.put(model_.flat(model_.parameters, false));
    machine_.weights({range(), parameters, row(1)});
    return expected(1, row_of(model_, setting_.dtype, model_.parameters, flat::sum_of_squares));
  }
  std::vector<double> changes(const std::vector<flat::LambStep>& steps) {
    machine_.changes({update(steps), row(2)});
    const std::size_t size = size_of(setting_.kept());
    const auto changed = [&](std::size_t entry, std::size_t first, std::size_t count) {
      const Bytes gradient = applied(setting_, model_.gradients[entry]);
      auto& kept = setting_.masters ? model_.masters[entry] : model_.parameters[entry];
      const flat::Elements elements{setting_.kept(),
                                    kept.data() + first * size,
                                    gradient.data() + first * size,
                                    {model_.states[0][entry].data() + first * size,
                                     model_.states[1][entry].data() + first * size},
                                    count};
      return flat::squares_of_change(elements, steps[entry % 2]);
    };
    return expected(2, row_of(model_.layout, changed));
  }

  // Of all rows, by entry; the rows are scratch memory after it.
  const double* entry_norms() {
    const std::size_t entries = model_.layout.entries().size();
    double* const norms = machine_.put(std::vector<double>(3 * entries, 7));
    machine_.entry_norms({there_.tables.places, static_cast<std::uint32_t>(entries), 3,
                          model_.layout.blocks(), rows_, norms});
    return norms;
  }
  std::vector<double> by_entry(const std::vector<double>& row) const {
    std::vector<double> norms;
    for (const plan::Entry& entry : model_.layout.entries())
      norms.push_back(std::sqrt(plan::tree_sum({row.data() + entry.first_block, entry.blocks()})));
    return norms;
  }

 private:
  double* row(std::size_t number) const { return rows_ + number * model_.layout.blocks(); }
  flat::DeviceRange range() const { return {there_.tables, model_.tables.all(), setting_.dtype}; }
  std::vector<double> expected(std::size_t number, const std::vector<double>& of_the_cpu) {
    EXPECT_TRUE(same_bits(machine_.get(row(number), of_the_cpu.size()), of_the_cpu)) << number;
    return of_the_cpu;
  }
  flat::UpdateTask update(const std::vector<flat::LambStep>& steps) {
    flat::UpdateTask task;
    task.range = range();
    task.rule = flat::UpdateRule::kLamb;
    std::vector<flat::element::LambNumbers<double>> numbers;
    for (const auto& step : steps) numbers.push_back(flat::element::numbers_of(step));
    task.numbers = machine_.put(numbers);
    task.parameters = machine_.put(model_.flat(model_.parameters, false));
    if (setting_.masters)
      task.masters = reinterpret_cast<float*>(machine_.put(model_.flat(model_.masters, true)));
    for (std::size_t i = 0; i < 2; ++i)
      task.states[i] = machine_.put(model_.flat(model_.states[i], setting_.masters));
    task.wide_states = setting_.masters;
    task.gradients = there_.gradients;
    if (setting_.factor != 0) task.factor = machine_.put(std::vector<double>{setting_.factor});
    task.limit = setting_.limit;
    return task;
  }

  Machine& machine_;
  Setting setting_;
  Model model_;
  There there_;
  double* rows_ = nullptr;
};

}  // namespace

void expect_norms_of_the_cpu(Machine& machine) {
  using flat::Measure;
  for (const Setting& setting : all_settings()) {
    SCOPED_TRACE(describe(setting));
    const auto squares = Rows(machine, setting).gradients();
    expect_clipping(machine, squares, std::sqrt(plan::tree_sum(squares)), Measure::kSquares);
    const Model model(setting);
    const There there = put(machine, model, setting);
    double* const row = machine.put(std::vector<double>(squares.size(), 7));
    machine.measure({{there.tables, model.tables.all(), setting.dtype},
                     there.gradients,
                     setting.masters,
                     row,
                     Measure::kLargest,
                     setting.limit});
    const auto largest = row_of(model, setting.kept(), measured(setting, model), flat::largest);
    ASSERT_TRUE(same_bits(machine.get(row, largest.size()), largest));
    expect_clipping(machine, largest, *std::max_element(largest.begin(), largest.end()),
                    Measure::kLargest);
  }
}

void expect_trusts_of_the_cpu(Machine& machine) {
  const std::vector<flat::LambStep> steps = {{0.01, 0.9, 0.999, 1e-4, 0, 1},
                                             {0.02, 0.8, 0.99, 1e-6, 0.1, 3}};
  for (const Setting& setting : all_settings()) {
    SCOPED_TRACE(describe(setting));
    Rows rows(machine, setting);
    std::vector<double> norms[] = {rows.gradients(), rows.weights(), rows.changes(steps)};
    for (auto& row : norms) row = rows.by_entry(row);
    const double* const there = rows.entry_norms();
    const std::size_t entries = norms[0].size();
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(same_bits(machine.get(there + i * entries, entries), norms[i])) << i;
    std::vector<flat::element::Trust> rules(entries, {0.001, 1e-4, 1e-8});
    rules[1].adapts = false;
    rules[2] = {};
    const double* const factor =
        setting.factor == 0 ? nullptr : machine.put(std::vector<double>{setting.factor});
    double* const trusts = machine.put(std::vector<double>(entries, 7));
    machine.trusts({static_cast<std::uint32_t>(entries), machine.put(rules), there + entries, there,
                    factor, trusts});
    for (std::size_t i = 0; i < entries; ++i) {
      const double other = (setting.factor == 0 ? 1 : setting.factor) * norms[0][i];
      EXPECT_EQ(machine.get(trusts, entries)[i], rules[i].of(norms[1][i], other)) << i;
    }
  }
}

void expect_the_order_of_the_tree(Machine& machine, const std::vector<std::size_t>& sizes) {
  for (const std::size_t n : sizes) {
    std::vector<double> values = rough_elements<double>(n, static_cast<std::uint32_t>(n));
    for (double& value : values) value = value * value * 1.1;
    double* const squares = machine.put(values);
    const double norm = std::sqrt(plan::tree_sum(values));
    ASSERT_EQ(clip(machine, squares, n, 1).norm, norm) << n;
    const flat::EntryOffsets* const place = machine.put(std::vector<flat::EntryOffsets>(1));
    double* const of_entry = machine.put(std::vector<double>{7});
    machine.entry_norms({place, 1, 1, n, squares, of_entry});
    ASSERT_EQ(machine.get(of_entry, 1)[0], norm) << n;
  }
  for (const flat::Measure measure : {flat::Measure::kSquares, flat::Measure::kLargest}) {
    for (const double bad :
         {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      double* const row = machine.put(std::vector<double>{1, bad, 2});
      EXPECT_EQ(clip(machine, row, 3, 1, 1, measure).skip, 1U);
    }
  }
}

}  // namespace lockstep::testing
