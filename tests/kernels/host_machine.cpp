#include <cstring>

#include "flat/device_norms.h"
#include "tests/kernels/machine.h"

namespace lockstep::testing {
namespace {

using flat::Chunk;
using flat::UpdateTask;
namespace element = flat::element;

// Fewer than a device has, and no power of two: results must not depend on it.
constexpr std::uint32_t kThreads = 48;

template <typename Body>
void for_each_thread(const Body& body) {
  for (std::uint32_t i = 0; i < kThreads; ++i) body(element::Thread{i, kThreads});
}

template <typename Body>
void for_each_chunk(const flat::DeviceRange& range, const Body& body) {
  for (std::uint32_t i = range.chunks.begin; i < range.chunks.end; ++i)
    body(range.tables.chunks[i]);
}

template <typename Rule>
struct Update {
  const UpdateTask& task;

  template <typename Of>
  void operator()() const {
    task.watched.before != nullptr ? run<Of, true>() : run<Of, false>();
  }
  template <typename Of, bool kWithParity>
  void run() const {
    for_each_chunk(task.range, [&](const Chunk& chunk) {
      for_each_thread([&](element::Thread thread) {
        const auto seen = element::update_chunk<Of, Rule, kWithParity>(task, chunk, thread);
        if (!kWithParity) return;
        task.watched.before[chunk.piece] ^= seen.before;
        task.watched.after[chunk.piece] ^= seen.after;
        task.watched.applied[chunk.piece] ^= seen.applied;
      });
    });
  }
};

struct UpdateByRule {
  const UpdateTask& task;

  template <typename Rule>
  void operator()() const {
    element::choose_types(task.range.dtype, task.gradients.dtype, task.masters != nullptr,
                          Update<Rule>{task});
  }
};

// Nodes of a tree, into the first.
template <typename Measure>
void join_nodes(double* nodes, std::size_t count) {
  for (std::size_t half = 1; half < count; half *= 2) {
    for (std::size_t i = 0; i + half < count; i += 2 * half)
      nodes[i] = Measure::join(nodes[i], nodes[i + half]);
  }
}

// Values of a task, block by block.
template <typename Measure, typename Values, typename Task>
void fill_row(const Task& task, const flat::DeviceRange& range) {
  for_each_chunk(range, [&](const Chunk& chunk) {
    const Values values = Values::of(task, chunk);
    for (std::uint32_t first = 0; first < chunk.count; first += plan::kBlockElements) {
      const auto count = std::min<std::uint32_t>(plan::kBlockElements, chunk.count - first);
      using Lanes = element::Lanes<Measure, Values>;
      double lanes[Lanes::kThreads] = {};
      for (std::uint32_t thread = 0; thread < Lanes::kThreads && !values.none(); ++thread)
        lanes[thread] = Lanes::of(values, first, count, thread);
      join_nodes<Measure>(lanes, Lanes::kThreads);
      task.row[range.tables.places[chunk.entry].first_block + chunk.block +
               first / plan::kBlockElements] = lanes[0];
    }
  });
}

template <typename Measure>
struct MeasureTyped {
  const flat::MeasureTask& task;

  template <typename Of>
  void operator()() const {
    fill_row<Measure, element::GradientValues<Of>>(task, task.range);
  }
};
struct MeasureAny {
  const flat::MeasureTask& task;

  template <typename Measure>
  void operator()() const {
    element::choose_types(task.range.dtype, task.gradients.dtype, task.masters,
                          MeasureTyped<Measure>{task});
  }
};
struct Weights {
  const flat::WeightsTask& task;

  template <typename Of>
  void operator()() const {
    fill_row<element::SumOfSquares, element::WeightValues<Of>>(task, task.range);
  }
};
struct Changes {
  const flat::ChangesTask& task;

  template <typename Of>
  void operator()() const {
    fill_row<element::SumOfSquares, element::ChangeValues<Of>>(task, task.update.range);
  }
};

struct Gather {
  const flat::GatherTask& task;

  template <typename From, typename Flat>
  void operator()() const {
    for_each_chunk(task.range, [&](const Chunk& chunk) {
      for_each_thread(
          [&](element::Thread thread) { element::gather_chunk<From, Flat>(task, chunk, thread); });
    });
  }
};

template <typename Measure>
std::vector<double> joined_tiles(const std::vector<double>& values) {
  std::vector<double> sums;
  for (std::size_t first = 0; first < values.size(); first += element::kTile) {
    const std::size_t count = std::min<std::size_t>(element::kTile, values.size() - first);
    const auto in_tile = static_cast<std::uint32_t>(count);
    std::vector<double> nodes;
    for (std::uint32_t begin = 0; begin < in_tile; begin += element::kRun) {
      double run[element::kRun];
      element::load_run(values.data() + first, begin, in_tile, run);
      nodes.push_back(element::join_run<Measure>(run, begin, in_tile));
    }
    join_nodes<Measure>(nodes.data(), nodes.size());
    sums.push_back(nodes[0]);
  }
  return sums;
}

template <typename Measure>
double norm_of(const double* row, std::size_t count) {
  std::vector<double> sums(row, row + count);
  while (sums.size() > 1) sums = joined_tiles<Measure>(sums);
  return Measure::norm(sums.empty() ? 0 : sums[0]);
}

struct Clip {
  const flat::ClipTask& task;

  template <typename Measure>
  void operator()() const {
    const double norm = norm_of<Measure>(task.row, task.blocks);
    *task.result = element::clipping_of(norm, task.most, task.unscale);
  }
};

class HostMachine : public Machine {
 public:
  std::byte* allocate(std::size_t bytes) override {
    struct alignas(256) Line {
      std::byte bytes[256];
    };
    auto memory = std::shared_ptr<Line[]>(new Line[bytes / sizeof(Line) + 1]());
    memory_.push_back(memory);
    return memory[0].bytes;
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void update(const UpdateTask& task) override {
    if (task.skip != nullptr && *task.skip != 0) return;
    element::choose_rule(task, UpdateByRule{task});
  }
  void measure(const flat::MeasureTask& task) override {
    element::choose_measure(task.measure, MeasureAny{task});
  }
  void weights(const flat::WeightsTask& task) override {
    element::choose_types(task.range.dtype, task.range.dtype, false, Weights{task});
  }
  void changes(const flat::ChangesTask& task) override {
    const UpdateTask& update = task.update;
    element::choose_types(update.range.dtype, update.gradients.dtype, update.masters != nullptr,
                          Changes{task});
  }
  void clip(const flat::ClipTask& task) override {
    element::choose_measure(task.measure, Clip{task});
  }
  void entry_norms(const flat::EntryNormsTask& task) override {
    for (std::uint32_t row = 0; row < task.rows; ++row) {
      for (std::uint32_t entry = 0; entry < task.entries; ++entry) {
        const auto numbers = element::EntryRow::of(task, row, entry);
        task.norms[row * task.entries + entry] =
            norm_of<element::SumOfSquares>(numbers.first, numbers.count);
      }
    }
  }
  void trusts(const flat::TrustTask& task) override {
    for (std::uint32_t entry = 0; entry < task.entries; ++entry) element::find_trust(task, entry);
  }
  void gather(const flat::GatherTask& task) override {
    element::choose_gather(task.range.dtype, task.flat_dtype, Gather{task});
  }

 private:
  std::vector<std::shared_ptr<void>> memory_;
};

}  // namespace

std::unique_ptr<Machine> make_host_machine() {
  return std::make_unique<HostMachine>();
}

}  // namespace lockstep::testing
