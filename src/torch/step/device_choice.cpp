// The classes for a CPU or for a GPU, chosen once for each loop by where its models are.
#include <utility>

#include "torch/replica/synced_norms.h"
#include "torch/step/commit_page.h"
#include "torch/step/shard_buffers.h"
#include "torch/step/shard_runner.h"

namespace lockstep::steps {
namespace {

bool on_host(const ModelView& model) {
  return model.device().kind == DeviceKind::kCpu;
}

}  // namespace

std::unique_ptr<ShardRunner> make_shard_runner(ShardWork work) {
  work.loss = [loss = std::move(work.loss)](const Shard& shard) {
    const replica::NoSyncedNorms no_synced_norms;
    return loss(shard);
  };
  const bool host = on_host(work.models.front()->model());
  return host ? make_host_shards(std::move(work)) : make_device_shards(std::move(work));
}

std::unique_ptr<ShardBuffers> make_shard_buffers(const ModelView& model, BufferRule rule) {
  return on_host(model) ? make_host_buffers(model.buffers(), rule)
                        : make_device_buffers(model, rule);
}

std::unique_ptr<CommitPage> make_commit_page(Comm& comm, const CommitPage::Shape& shape,
                                             Device device) {
  if (device.kind != DeviceKind::kCpu) return nullptr;
  return std::make_unique<CommitPage>(comm, shape);
}

}  // namespace lockstep::steps
