// The classes for a CPU or for a GPU, chosen once for each loop by where its models are.
#include <lockstep/errors.h>

#include <optional>
#include <string>
#include <utility>

#include "torch/data/draws.h"
#include "torch/replica/synced_norms.h"
#include "torch/step/round_model.h"
#include "torch/step/round_numbers.h"
#include "torch/step/shard_buffers.h"
#include "torch/step/shard_runner.h"

namespace lockstep::steps {
namespace {

// Of models without synchronised batch norms when the loop began.
class NoExchange : public replica::NormExchange {
 public:
  replica::NormRows gather(const std::string& name, const replica::NormRow&) override {
    throw BadInput(name +
                   " cannot share its statistics in this loss: call convert_sync_batchnorm() for a "
                   "model of the job, "
                   "before batches()");
  }
  std::int64_t count(const std::string&) override { return 0; }
};

bool has_synced_norms(const ShardWork& work) {
  return !replica::describe_synced_norms(work.tensors).empty();
}

}  // namespace

bool on_host(const ModelView& model) {
  return model.device().kind == DeviceKind::kCpu;
}

std::unique_ptr<ShardRunner> make_shard_runner(ShardWork work) {
  const bool host = on_host(work.models.front()->model());
  const bool local = !work.locals.empty();
  if (has_synced_norms(work)) return make_shards_in_step(std::move(work));
  work.loss = [loss = std::move(work.loss)](const Shard& shard) {
    NoExchange none;
    const replica::NormScope scope(none);
    return loss(shard);
  };
  if (work.shared) return make_asynchronous_shards(std::move(work));
  if (local) return make_local_shards(std::move(work));
  return host ? make_host_shards(std::move(work)) : make_device_shards(std::move(work));
}

// On CPUs workers may be threads of one process, which has one default generator.
void run_seeded(std::uint64_t seed, Device device, const std::function<void()>& work) {
  std::optional<data::DrawScope> draws;
  if (device.kind == DeviceKind::kCpu)
    draws.emplace(seed);
  else
    torch::manual_seed(seed);
  work();
}

std::unique_ptr<RoundNumbers> make_round_numbers(Device device) {
  return device.kind == DeviceKind::kCpu ? make_host_round_numbers()
                                         : make_device_round_numbers(device);
}

std::unique_ptr<RoundModel> make_round_model(replica::Replicated& model,
                                             std::chrono::milliseconds timeout) {
  return model.device().kind == DeviceKind::kCpu ? make_host_round_model(model)
                                                 : make_device_round_model(model, timeout);
}

std::unique_ptr<ShardBuffers> make_shard_buffers(const ModelView& model, BufferRule rule) {
  return on_host(model) ? make_host_buffers(model.buffers(), rule)
                        : make_device_buffers(model, rule);
}

}  // namespace lockstep::steps
