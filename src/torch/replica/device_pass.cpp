#include "torch/replica/pass.h"

#include "torch/replica/device_reduction.h"

namespace lockstep::replica {

// A capture only records: nothing of it may stay in param.grad. So the destructor makes gradients
// undefined again, as they are before every pass on a GPU.
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
  const auto& gradients = static_cast<const DeviceGradients&>(parts_.banks->in_use());
  for (std::size_t entry = 0; entry < parts_.plan.layout.entries().size(); ++entry) {
    mark(entry);  // one that has no gradient, too: its bucket is then complete
    captured_.gradients.push_back(parts_.parameter(entry).grad());
    captured_.own.push_back(gradients.owns(entry));
  }
  return std::move(captured_);
}

// Gradients that are not reduced stay where the graph wrote them, until the next replay. Those that
// are reduced go to the wire on another stream: each bucket waits only for its own point in the
// graph, and not for the end of the graph.
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
