// Forward and backward of shards on a GPU: they are queued there, and the host goes on.
//
//   eager    LibTorch queues one kernel after the other
//   replay   what an eager pass queues is captured once, as a CUDA graph. For every shard with as many samples the graph is
//            queued again as a whole, with the shard's samples, seed and weight. In replay 1, 2, 4, 8 … its loss is
//            compared with that of a forward pass
//
// Losses come back a step later, so that the host never waits before it has queued more work. The update copies them to
// the host: a copy on another stream would make one stream wait for the other, and that takes longer than a kernel.
#include <fmt/format.h>
#include <lockstep/errors.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "torch/device/device.h"
#include "torch/step/arithmetic.h"
#include "torch/step/shard_runner.h"

namespace lockstep::steps {
namespace {

// The first passes cannot be captured: libraries choose kernels and take memory in them.
constexpr int kWarmUp = 2;

bool same_kind(const torch::Tensor& a, const torch::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

torch::Tensor copy_of(const torch::Tensor& tensor) {
  return tensor.defined() ? tensor.clone() : tensor;
}

// The tensor that was copied into the graph's input last, and its version then.
struct Copied {
  torch::Tensor tensor;
  std::int64_t version = 0;
};

// Metrics that a loss has reported. `values` has a sum and a weight for each name.
struct Reported {
  std::vector<std::string> names;
  std::vector<torch::Tensor> values;
};

// The captured pass: its graph, and the tensors that the graph reads and writes.
struct Replay {
  device::Graph graph;
  Batch input;  // a replay reads these tensors; samples are copied into them
  struct {
    Copied data;
    Copied target;
  } copied;
  torch::Tensor weight;
  double weight_is = 0;  // the value in `weight`
  torch::Tensor loss;
  Reported reported;
  std::vector<replica::ShardPass::Captured> captured;  // by model
};

// Threads:   one caller at a time, always with the same current stream.
// Blocking:  bring(), until the GPU has run the step; run() if it captures; the destructor, until the GPU writes no more
//            losses to the host.
// Failure:   what the loss throws; BadInput for a loss that has changed since it was captured. What cannot be captured
//            runs eagerly, and counts() says why. Timeout from bring().
// Ownership: borrows the models; owns the graph and the memory of its tensors.
class DeviceShards : public ShardRunner, private Reports {
 public:
  explicit DeviceShards(ShardWork work);
  ~DeviceShards() override;
  DeviceShards(const DeviceShards&) = delete;
  DeviceShards& operator=(const DeviceShards&) = delete;

  void begin_step() override;
  // The models add up or reduce the gradients, as after backward().
  void run(Turns& turns) override;
  flat::Note note() override;
  void end_step() override;
  const std::set<std::string>& metrics() const override { return metrics_; }
  std::optional<PhaseResult::Local> known() override { return std::nullopt; }
  PhaseResult::Local bring(Deadline deadline) override;
  std::map<int, double> losses(Deadline deadline) override;
  const ShardCounts& counts() const override { return counts_; }

 private:
  // The numbers of a step, for the host to read when the GPU is done with it.
  struct Record {
    struct OfShard {
      int shard = 0;
      double weight = 0;
      std::vector<std::string> names;  // of metrics
    };
    // In pinned memory: of each shard its loss, then the sums and weights of its metrics.
    torch::Tensor numbers;
    std::vector<OfShard> shards;
    device::Event done;
  };

  void add(const std::string& name, const torch::Tensor& sum, const torch::Tensor& weight) override;
  void add(const std::string& name, double sum, double weight) override;
  void run_one(Turn& turn, Turns& turns);
  torch::Tensor loss_of(const Shard& shard, std::uint64_t seed);
  torch::Tensor run_eagerly(const Turn& turn);
  torch::Tensor replay(const Turn& turn);
  void capture(const Turn& turn);
  torch::Tensor loss_alone(const Turn& turn);
  static void check(const torch::Tensor& replayed, const torch::Tensor& expected);
  void keep(const torch::Tensor& loss);
  void keep_with_reports(const torch::Tensor& loss);
  static std::int64_t count_in(const Record& record);
  static PhaseResult::Local read(const Record& record, const torch::Tensor& numbers);
  bool fits(const Batch& batch) const;
  std::int64_t hosted() const { return work_.generation->hosted.size(); }  // shards of this worker
  Device device() const { return work_.models.front()->model().device(); }
  static void copy_input(const torch::Tensor& from, torch::Tensor& to, Copied& last);

  ShardWork work_;
  int warm_up_ = 0;       // eager passes so far
  torch::Tensor weight_;  // the weight of one of them, as a tensor of the loss's kind
  Reported reported_;     // by the shard that runs
  bool capturing_ = false;
  std::optional<Replay> replay_;
  std::array<std::optional<Record>, 2> records_;  // of even and odd steps: one is read, one written
  std::size_t step_ = 0;
  // On the GPU, of the step under way. With one shard and no metrics it may be the loss itself.
  torch::Tensor numbers_;
  std::set<std::string> metrics_;
  ShardCounts counts_;
};

// A tensor that is in the input already is not copied again; so it is with a data set of one batch.
void DeviceShards::copy_input(const torch::Tensor& from, torch::Tensor& to, Copied& last) {
  if (!from.defined()) return;
  if (last.tensor.is_same(from) && last.version == from._version()) return;
  to.copy_(from, /*non_blocking=*/true);
  last = {from, static_cast<std::int64_t>(from._version())};
}

DeviceShards::DeviceShards(ShardWork work) : work_(std::move(work)) {}

// Waits, because a queued update may still write to the pinned memory, and LibTorch would give that memory away. A device
// that has failed or stands still writes nothing more.
DeviceShards::~DeviceShards() {
  try {
    const device::CurrentDevice current(device());
    device::Event end;
    end.record(device::current_stream(device()));
    end.wait(Deadline::after(std::chrono::seconds(10)));
  } catch (const std::exception&) {
  }
}

void DeviceShards::begin_step() {
  auto& record = records_[step_ % 2];
  if (!record) record.emplace();
  record->shards.clear();
}

void DeviceShards::run(Turns& turns) {
  run_in_order(turns, [&](Turn& turn) { run_one(turn, turns); });
}

// Forward and backward are queued as one: before_backward() comes before both, and forward_done() after both.
void DeviceShards::run_one(Turn& turn, Turns& turns) {
  turns.before_forward();
  turns.before_backward(turn);
  turn.shard.reports = this;
  const Batch& batch = turn.shard.batch;
  say_where({"loss", turn.shard.step, turn.shard.index}, [&] {
    if (work_.graphs && !replay_ && warm_up_ >= kWarmUp && batch.samples == work_.samples &&
        !turn.measured)
      capture(turn);
    if (replay_ && !fits(batch) && counts_.reason.empty())
      counts_.reason = "a shard, as of a short last batch, has another shape than the captured one";
    const bool replays = replay_ && fits(batch) && !turn.measured;  // a graph calls no hooks
    const torch::Tensor loss = replays ? replay(turn) : run_eagerly(turn);
    metrics_.empty() ? keep(loss) : keep_with_reports(loss);
  });
  records_[step_ % 2]->shards.push_back({turn.shard.index, turn.weight, reported_.names});
  turns.forward_done(turn);
}

// Keeps the loss on the GPU until the update copies it, as bytes: so it gets the type that the record has. With several
// shards it is copied now, since the next replay overwrites it.
void DeviceShards::keep(const torch::Tensor& loss) {
  Record& record = *records_[step_ % 2];
  if (!record.numbers.defined() || record.numbers.numel() != hosted()) {
    const auto pinned = torch::TensorOptions().dtype(loss.scalar_type()).pinned_memory(true);
    record.numbers = torch::empty({hosted()}, pinned);
  }
  const auto options =
      torch::TensorOptions().dtype(record.numbers.dtype()).device(torch::Device(device()));
  if (hosted() == 1) {
    numbers_ = loss.to(options);
    return;
  }
  if (!numbers_.defined() || numbers_.numel() != hosted())
    numbers_ = torch::empty({hosted()}, options);
  const auto number = static_cast<std::int64_t>(record.shards.size());
  numbers_.select(0, number).copy_(loss.reshape(at::IntArrayRef{}));
}

// How many numbers the shards of the record have.
std::int64_t DeviceShards::count_in(const Record& record) {
  std::size_t count = 0;
  for (const auto& of : record.shards) count += 1 + 2 * of.names.size();
  return static_cast<std::int64_t>(count);
}

// Puts the loss and the reported metrics behind the numbers of the shards before.
void DeviceShards::keep_with_reports(const torch::Tensor& loss) {
  Record& record = *records_[step_ % 2];
  std::vector<torch::Tensor> row;
  if (!record.shards.empty())
    row.push_back(numbers_.reshape({-1}).slice(0, 0, count_in(record)).to(torch::kFloat64));
  row.push_back(loss.reshape({1}).to(torch::kFloat64));
  for (const torch::Tensor& value : reported_.values)
    row.push_back(value.reshape({1}).to(torch::kFloat64));
  numbers_ = torch::cat(row);
  if (record.numbers.defined() && record.numbers.numel() >= numbers_.numel() &&
      record.numbers.scalar_type() == torch::kFloat64)
    return;
  const auto pinned = torch::TensorOptions().dtype(torch::kFloat64).pinned_memory(true);
  record.numbers = torch::empty({hosted() * numbers_.numel()}, pinned);
}

flat::Note DeviceShards::note() {
  const Record& record = *records_[step_ % 2];
  if (record.shards.empty()) return {};
  const auto bytes = count_in(record) * static_cast<std::int64_t>(numbers_.element_size());
  return {numbers_.data_ptr(), record.numbers.data_ptr(), static_cast<std::uint32_t>(bytes)};
}

void DeviceShards::end_step() {
  records_[step_ % 2]->done.record(device::current_stream(device()));
  ++step_;
}

PhaseResult::Local DeviceShards::bring(Deadline deadline) {
  const Record& record = *records_[(step_ + 1) % 2];  // end_step() has counted on
  record.done.wait(deadline);
  const PhaseResult::Local local = read(record, record.numbers);
  for (ModelStep* const model : work_.models) model->collect_with_parity();
  return local;
}

std::map<int, double> DeviceShards::losses(Deadline deadline) {
  device::Event here;
  here.record(device::current_stream(device()));
  here.wait(deadline);
  const Record& record = *records_[step_ % 2];
  if (record.shards.empty()) return {};
  return read(record, numbers_.reshape({-1}).to(torch::kCPU)).weighted_losses;
}

PhaseResult::Local DeviceShards::read(const Record& record, const torch::Tensor& numbers) {
  PhaseResult::Local local;
  std::int64_t number = 0;
  const auto next = [&] { return numbers[number++].item<double>(); };
  for (const auto& [shard, weight, names] : record.shards) {
    local.weighted_losses[shard] = weight * next();
    for (const std::string& name : names) {
      auto& report = local.reports[shard][name];
      report.sum = next();
      report.weight = next();
    }
  }
  return local;
}

void DeviceShards::add(const std::string& name, const torch::Tensor& sum,
                       const torch::Tensor& weight) {
  metrics_.insert(name);
  reported_.names.push_back(name);
  const auto options = torch::TensorOptions().device(torch::Device(device()));
  for (const torch::Tensor& value : {sum, weight})
    reported_.values.push_back(value.detach().to(options));
}

void DeviceShards::add(const std::string& name, double sum, double weight) {
  if (capturing_)
    throw BadInput(fmt::format("the metric {} is a number of the host: report a tensor", name));
  const auto value = [](double number) { return torch::full({}, number, torch::kFloat64); };
  add(name, value(sum), value(weight));
}

torch::Tensor DeviceShards::loss_of(const Shard& shard, std::uint64_t seed) {
  reported_ = {};
  torch::manual_seed(seed);
  torch::Tensor loss = work_.loss(shard);
  check_loss(loss, shard);
  return loss;
}

torch::Tensor DeviceShards::run_eagerly(const Turn& turn) {
  ++counts_.eager;
  const torch::Tensor loss = loss_of(turn.shard, turn.seed);
  const torch::Tensor root = backward_root(loss, turn);
  const torch::Tensor seeded = torch::full_like(root, turn.weight * turn.scale);
  weighted_backward(work_, root, seeded);
  if (warm_up_++ < kWarmUp) weight_ = seeded;
  return loss.detach();
}

bool DeviceShards::fits(const Batch& batch) const {
  return batch.samples == replay_->input.samples && same_kind(batch.data, replay_->input.data) &&
         same_kind(batch.target, replay_->input.target);
}

torch::Tensor DeviceShards::replay(const Turn& turn) {
  ++counts_.replayed;
  Replay& replay = *replay_;
  const Batch& batch = turn.shard.batch;
  copy_input(batch.data, replay.input.data, replay.copied.data);
  copy_input(batch.target, replay.input.target, replay.copied.target);
  const double weight = turn.weight * turn.scale;
  if (weight != replay.weight_is) replay.weight.fill_(replay.weight_is = weight);
  torch::Tensor expected;
  if (std::has_single_bit(static_cast<std::uint64_t>(counts_.replayed)))
    expected = loss_alone(turn);
  torch::manual_seed(turn.seed);
  replay.graph.replay();
  if (expected.defined()) check(replay.loss, expected);
  for (std::size_t i = 0; i < work_.models.size(); ++i)
    work_.models[i]->replayed(replay.captured[i]);
  reported_ = replay.reported;
  return replay.loss;
}

// The loss of an eager forward pass. Buffers have their old values after it.
torch::Tensor DeviceShards::loss_alone(const Turn& turn) {
  std::vector<torch::Tensor> before;
  for (const torch::Tensor& bytes : work_.buffer_bytes) before.push_back(bytes.clone());
  const torch::Tensor loss = loss_of(turn.shard, turn.seed).detach();
  for (std::size_t i = 0; i < before.size(); ++i) work_.buffer_bytes[i].copy_(before[i]);
  return loss;
}

// A graph repeats what the host decided during the capture: its numbers, and its branches. If the loss depends on
// something of the host that has changed since, the two losses differ.
void DeviceShards::check(const torch::Tensor& replayed, const torch::Tensor& expected) {
  const bool exact = at::globalContext().deterministicAlgorithms();
  constexpr double kRounding = 1e-2;  // half types that are added in another order
  const bool same =
      exact ? torch::equal(replayed, expected) || !torch::isfinite(expected).all().item<bool>()
            : torch::allclose(replayed, expected, kRounding, kRounding, true);
  if (same) return;
  throw BadInput(
      "the loss depends on something of the host that has changed since it was captured as a CUDA "
      "graph, such as a coefficient, a counter or a choice of layers: pass it in as a tensor on "
      "the GPU, or switch "
      "cuda_graphs off (lockstep train: --graphs off)");
}

void DeviceShards::capture(const Turn& turn) {
  replay_.emplace();
  Replay& replay = *replay_;
  const Batch& batch = turn.shard.batch;
  replay.input = {copy_of(batch.data), copy_of(batch.target), batch.samples};
  replay.weight = weight_.clone();
  replay.weight_is = std::nan("");  // unlike any weight: the first replay writes its own
  Shard shard = turn.shard;
  shard.batch = replay.input;
  torch::manual_seed(turn.seed);
  reported_ = {};
  capturing_ = true;
  try {
    std::vector<std::unique_ptr<replica::CapturePass>> passes;
    for (ModelStep* const model : work_.models) passes.push_back(model->capture());
    replay.graph.capture([&] {
      const torch::Tensor captured = work_.loss(shard);
      weighted_backward(work_, backward_root(captured, turn), replay.weight);
      replay.loss = captured.detach();
      for (const auto& pass : passes) replay.captured.push_back(pass->finish());
    });
    replay.reported = reported_;
  } catch (const std::exception& error) {
    counts_.reason = fmt::format("the pass cannot be captured: {}", error.what());
    base::log(base::LogLevel::kInfo, "no CUDA graphs: {}", counts_.reason);
    replay_.reset();
    work_.graphs = false;
  }
  capturing_ = false;
}

}  // namespace

std::unique_ptr<ShardRunner> make_device_shards(ShardWork work) {
  return std::make_unique<DeviceShards>(std::move(work));
}

}  // namespace lockstep::steps
