#include "torch/replica/pass.h"

#include "torch/replica/device_reduction.h"

namespace lockstep::replica {

// Gradients are undefined before a pass on a GPU, and must be again before the replay.
CapturePass::CapturePass(Parts& parts, Attachment& attachment, PassListener& next)
    : parts_(parts),
      attachment_(attachment),
      next_(next),
      ledger_(parts.plan.layout, parts.plan.buckets) {
  if (parts_.reduction->travels()) captured_.ready.resize(parts_.plan.buckets.size());
  attachment_.tell(*this);
}

CapturePass::~CapturePass() {
  for (NamedTensor& named : parts_.model.trained) named.tensor.mutable_grad() = torch::Tensor();
  attachment_.tell(next_);
}

void CapturePass::ready(std::size_t entry, const torch::Tensor& incoming) {
  parts_.banks->in_use().adopt(entry, incoming);
  mark(entry);
}

void CapturePass::mark(std::size_t entry) {
  ledger_.mark(entry);
  while (const auto bucket = ledger_.next_ready()) {
    if (!captured_.ready.empty())
      captured_.ready[*bucket].record_in_graph(device::current_stream(parts_.device()));
  }
}

ShardPass::Captured CapturePass::finish() {
  for (const std::size_t entry : ledger_.missing()) mark(entry);
  const auto& gradients = static_cast<const DeviceGradients&>(parts_.banks->in_use());
  const auto& entries = parts_.plan.layout.entries();
  for (std::size_t entry = 0; entry < entries.size(); ++entry) {
    captured_.gradients.push_back(parts_.model.trained[entries[entry].registered].tensor.grad());
    captured_.own.push_back(gradients.owns(entry));
  }
  return std::move(captured_);
}

// What is not reduced stays where the graph has written it, until the next replay. What is goes to the wire as soon as
// the graph has come to it, on another stream.
void ShardPass::replayed(const Captured& captured) {
  start(divisor_.has_value());
  if (!parts_.may_be_absent()) arrivals_.forget();
  ran_ = true;
  auto& gradients = static_cast<DeviceGradients&>(parts_.banks->in_use());
  for (std::size_t entry = 0; entry < captured.gradients.size(); ++entry) {
    if (!captured.gradients[entry].defined()) continue;
    gradients.set(entry, captured.gradients[entry], captured.own[entry]);
    arrivals_.mark(entry);
  }
  if (reduces_ && parts_.reduction->travels()) {
    arrivals_.check_complete();
    auto& reduction = static_cast<DeviceReduction&>(*parts_.reduction);
    for (std::size_t bucket = 0; bucket < parts_.plan.buckets.size(); ++bucket) {
      clock_.launched(true, false);
      reduction.launch_after(captured.ready[bucket], parts_.plan.buckets[bucket], sharded(),
                             {.factor = 1 / *divisor_, .algorithm = parts_.options.algorithm});
    }
  }
  end();
}

}  // namespace lockstep::replica
