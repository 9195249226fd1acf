#include "torch/train/device_shards.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <bit>
#include <chrono>
#include <cmath>

#include "base/log.h"

namespace lockstep::train {
namespace {

// Libraries choose kernels and take memory in the first passes, which cannot be captured.
constexpr int kWarmUp = 2;

bool same_kind(const torch::Tensor& a, const torch::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

torch::Tensor copy_of(const torch::Tensor& tensor) {
  return tensor.defined() ? tensor.clone() : tensor;
}

}  // namespace

// What is there already, as of a data set of one batch, is not copied again.
void DeviceShards::copy_input(const torch::Tensor& from, torch::Tensor& to, Copied& last) {
  if (!from.defined()) return;
  if (last.tensor.is_same(from) && last.version == from._version()) return;
  to.copy_(from, /*non_blocking=*/true);
  last = {from, static_cast<std::int64_t>(from._version())};
}

DeviceShards::DeviceShards(replica::Replicated& model, Loss loss, bool graphs, Size size)
    : model_(model), loss_(std::move(loss)), graphs_(graphs), size_(size) {}

// LibTorch would give the pinned memory to the next who asks, while an update that was queued is still to write to it. A
// device that has failed or stands still writes nothing.
DeviceShards::~DeviceShards() {
  try {
    const device::CurrentDevice current(model_.device());
    device::Event end;
    end.record(device::current_stream(model_.device()));
    end.wait(Deadline::after(std::chrono::seconds(10)));
  } catch (const std::exception&) {
  }
}

void DeviceShards::begin_step() {
  auto& record = records_[step_ % 2];
  if (!record) record.emplace();
  record->weights.clear();
}

void DeviceShards::run(const Batch& batch, int shard, std::uint64_t seed, double weight) {
  if (graphs_ && !replay_ && warm_up_ >= kWarmUp && batch.samples == size_.samples)
    capture(batch, seed);
  if (replay_ && !fits(batch) && counts_.reason.empty())
    counts_.reason = "a shard, as of a short last batch, has another shape than the captured one";
  const torch::Tensor loss =
      replay_ && fits(batch) ? replay(batch, seed, weight) : run_eagerly(batch, seed, weight);
  Record& record = *records_[step_ % 2];
  if (!record.losses.defined()) {
    const auto options = torch::TensorOptions().dtype(loss.scalar_type()).pinned_memory(true);
    record.losses = torch::empty({size_.hosted}, options);
  }
  keep(loss, record);
  record.weights.emplace_back(shard, weight);
}

// Until the update, which copies bytes: on the GPU, of the type that the record has. The next shard may overwrite it.
void DeviceShards::keep(const torch::Tensor& loss, Record& record) {
  const auto options =
      torch::TensorOptions().dtype(record.losses.dtype()).device(torch::Device(model_.device()));
  if (size_.hosted == 1) {
    losses_ = loss.to(options);
    return;
  }
  if (!losses_.defined()) losses_ = torch::empty({size_.hosted}, options);
  const auto place = static_cast<std::int64_t>(record.weights.size());
  losses_.select(0, place).copy_(loss.reshape(at::IntArrayRef{}));
}

kernels::Note DeviceShards::note() {
  const Record& record = *records_[step_ % 2];
  if (record.weights.empty()) return {};
  return {losses_.data_ptr(), record.losses.data_ptr(),
          static_cast<std::uint32_t>(record.weights.size() * losses_.element_size())};
}

void DeviceShards::end_step() {
  records_[step_ % 2]->done.record(device::current_stream(model_.device()));
  ++step_;
}

std::map<int, double> DeviceShards::losses(Deadline deadline) {
  const Record& record = *records_[(step_ + 1) % 2];
  record.done.wait(deadline);
  std::map<int, double> losses;
  for (std::size_t i = 0; i < record.weights.size(); ++i) {
    const auto& [shard, weight] = record.weights[i];
    losses[shard] = weight * record.losses[static_cast<std::int64_t>(i)].item<double>();
  }
  return losses;
}

torch::Tensor DeviceShards::run_eagerly(const Batch& batch, std::uint64_t seed, double weight) {
  ++counts_.eager;
  torch::manual_seed(seed);
  const torch::Tensor loss = loss_(batch);
  const torch::Tensor seeded = torch::full_like(loss, weight);
  loss.backward(seeded);
  if (warm_up_++ < kWarmUp) weight_ = seeded;
  return loss.detach();
}

bool DeviceShards::fits(const Batch& batch) const {
  return batch.samples == replay_->input.samples && same_kind(batch.data, replay_->input.data) &&
         same_kind(batch.target, replay_->input.target);
}

torch::Tensor DeviceShards::replay(const Batch& batch, std::uint64_t seed, double weight) {
  ++counts_.replayed;
  Replay& replay = *replay_;
  copy_input(batch.data, replay.input.data, replay.copied.data);
  copy_input(batch.target, replay.input.target, replay.copied.target);
  if (weight != replay.weight_is) replay.weight.fill_(replay.weight_is = weight);
  torch::Tensor expected;
  if (std::has_single_bit(static_cast<std::uint64_t>(counts_.replayed)))
    expected = loss_alone(batch, seed);
  torch::manual_seed(seed);
  replay.graph.replay();
  if (expected.defined()) check(replay.loss, expected);
  model_.shards().replayed(replay.captured);
  return replay.loss;
}

// The loss as it is now, and nothing else of it: buffers are as they were.
torch::Tensor DeviceShards::loss_alone(const Batch& batch, std::uint64_t seed) {
  const auto& memory = model_.buffer_memory();
  torch::Tensor buffers;
  torch::Tensor before;
  if (memory) {
    buffers = memory->as_tensor(torch::kUInt8, 0, memory->bytes());
    before = buffers.clone();
  }
  torch::manual_seed(seed);
  const torch::Tensor loss = loss_(batch).detach();
  if (memory) buffers.copy_(before);
  return loss;
}

// A graph repeats what the host has decided when it was captured: numbers that it had then, the way that it took.
void DeviceShards::check(const torch::Tensor& replayed, const torch::Tensor& expected) {
  const bool exact = at::globalContext().deterministicAlgorithms();
  constexpr double kRounding = 1e-2;  // of half types, added in another order
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

void DeviceShards::capture(const Batch& batch, std::uint64_t seed) {
  replay_.emplace();
  Replay& replay = *replay_;
  replay.input = {copy_of(batch.data), copy_of(batch.target), batch.samples};
  replay.weight = weight_.clone();
  replay.weight_is = std::nan("");  // whatever comes is another
  torch::manual_seed(seed);
  try {
    replica::CapturePass pass(model_.parts(), model_.attachment(), model_.shards());
    replay.graph.capture([&] {
      const torch::Tensor captured = loss_(replay.input);
      captured.backward(replay.weight);
      replay.loss = captured.detach();
      replay.captured = pass.finish();
    });
  } catch (const std::exception& error) {
    counts_.reason = fmt::format("the pass cannot be captured: {}", error.what());
    base::log(base::LogLevel::kInfo, "no CUDA graphs: {}", counts_.reason);
    replay_.reset();
    graphs_ = false;
  }
}

}  // namespace lockstep::train
