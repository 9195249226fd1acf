// Everything in this folder that depends on the device of a model. Chosen once for each replica.
#include <fmt/format.h>
#include <lockstep/errors.h>

#include <utility>

#include "torch/device/device.h"
#include "torch/replica/device_encoding.h"
#include "torch/replica/device_gradients.h"
#include "torch/replica/device_reduction.h"
#include "torch/replica/low_rank.h"
#include "torch/replica/measured_pass.h"
#include "torch/replica/parts.h"
#include "torch/replica/weight_sample.h"

namespace lockstep::replica {

Device device_of(const Model& model, const Comm& comm) {
  const Device device = device::of(model.trained.front().tensor);
  if (device.kind == DeviceKind::kCpu || comm.size() == 1 || comm.engine() == "nccl") return device;
  throw BadInput(
      fmt::format("the model lies on {}, which the {} engine does not reach: start the "
                  "workers with LOCKSTEP_DEVICE=cuda, or leave the model on the CPU",
                  device.text(), comm.engine()));
}

Reach reach_of(const FlatMemory& gradients, Algorithm algorithm) {
  const bool direct = algorithm == Algorithm::kAutomatic || algorithm == Algorithm::kDirect;
  return gradients.shared() && direct ? Reach::kMemory : Reach::kMessages;
}

Banks::Factory gradients_of(const Model& model, const ModelPlan& plan, Device device) {
  if (device.kind == DeviceKind::kCpu) {
    return [&model](const plan::Layout& layout, FlatMemory memory) {
      return std::make_unique<FlatGradients>(model.trained, layout, std::move(memory));
    };
  }
  return [&model, &plan, gather = make_gather(plan.layout, plan.pieces, device)](
             const plan::Layout& layout, FlatMemory memory) {
    return std::make_unique<DeviceGradients>(model.trained, layout, std::move(memory), plan.buckets,
                                             gather);
  };
}

std::unique_ptr<Encoding> make_encoding(const DataParallelOptions& options,
                                        const std::vector<NamedTensor>& trained,
                                        const plan::Layout& layout, Device device) {
  if (!options.codec) return nullptr;
  if (const auto power = std::dynamic_pointer_cast<const flat::PowerSgd>(options.codec))
    return std::make_unique<LowRank>(options, *power, trained, layout, device);
  if (device.kind != DeviceKind::kCpu) {
    if (auto encoding = make_device_encoding(options, layout, device)) return encoding;
    throw BadInput(fmt::format(
        "the codec {} is a program's own, for models on CPUs, and this model lies on {}",
        options.codec->name(), device.text()));
  }
  return std::make_unique<HostBlockEncoding>(options, layout);
}

std::unique_ptr<Reduction> low_rank_reduction_of(Comm& comm, Banks& banks, LowRank& encoding) {
  if (encoding.device().kind == DeviceKind::kCpu)
    return std::make_unique<LowRankReduction>(comm, banks, encoding);
  return std::make_unique<LowRankDeviceReduction>(comm, banks, encoding);
}

void orthonormalise_on(Device device, const torch::Tensor& factor) {
  if (device.kind != DeviceKind::kCpu) return orthonormalise_on_device(factor);
  flat::orthonormalise(factor.data_ptr<float>(), static_cast<std::size_t>(factor.size(0)),
                       static_cast<int>(factor.size(1)));
}

std::unique_ptr<Reduction> reduction_of(Comm& comm, Banks& banks, const ModelPlan& plan,
                                        const DataParallelOptions& options, Encoding* encoding) {
  const FlatMemory& gradients = banks.front().memory();
  const Device device = gradients.device();
  if (device.kind == DeviceKind::kCpu) {
    const Reach reach = reach_of(gradients, options.algorithm);
    if (encoding != nullptr) return encoding->reduction(encoding->reach(reach), comm, banks, plan);
    if (reach == Reach::kMemory)
      return std::make_unique<OnePassReduction>(comm, banks, plan, nullptr);
    return std::make_unique<MessageReduction>(comm, banks);
  }
  if (encoding != nullptr) return encoding->reduction(Reach::kMessages, comm, banks, plan);
  if (comm.size() == 1 && !options.force_collectives)
    return std::make_unique<LoneDeviceReduction>(banks);
  return std::make_unique<DeviceReduction>(comm, banks, plan.layout, device);
}

std::unique_ptr<HostCopy> host_copy_on(Device device, const Workers& workers, std::size_t bytes) {
  return device.kind == DeviceKind::kCpu ? HostCopy::make(workers, bytes) : nullptr;
}

std::optional<Comm> neighbours_on(Device device, Comm& comm) {
  if (device.kind != DeviceKind::kCpu || comm.hosts().empty()) return std::nullopt;
  return comm.on_host();
}

namespace {

std::unique_ptr<BufferSync> buffer_source_of(Comm& comm, const Model& model,
                                             const DataParallelOptions& options) {
  const Device device = device_of(model, comm);
  if (device.kind != DeviceKind::kCpu && !model.buffers.empty())
    return make_device_buffer_sync(comm, model.buffers, device);
  std::size_t bytes = 0;
  for (const NamedTensor& buffer : model.buffers) bytes += buffer.tensor.nbytes();
  if (comm.size() > 1 && bytes > 0 && options.buffers == BufferSource::kLeader) {
    FlatMemory memory(comm, bytes, Copies::kPerHost);
    if (reach_of(memory, options.algorithm) == Reach::kMemory)
      return std::make_unique<SharedBufferSync>(model.buffers, std::move(memory));
  }
  return std::make_unique<HostBufferSync>(model.buffers);
}

}  // namespace

std::unique_ptr<BufferSync> buffer_sync_of(Comm& comm, const Model& model,
                                           const DataParallelOptions& options) {
  auto source = buffer_source_of(comm, model, options);
  if (options.buffers != BufferSource::kMean) return source;
  return std::make_unique<MeanBufferSync>(model.buffers, std::move(source));
}

std::unique_ptr<MeasuredPass> make_measured_pass(const Parts& parts, Attachment& attachment,
                                                 PassListener& next) {
  return parts.device().kind == DeviceKind::kCpu
             ? make_host_measured_pass(parts, attachment, next)
             : make_device_measured_pass(parts, attachment, next);
}

std::unique_ptr<WeightSample> weight_sample_of(const Parts& parts) {
  if (parts.device().kind == DeviceKind::kCpu)
    return std::make_unique<HostWeightSample>(parts.model.parameters);
  return make_device_weight_sample(parts);
}

}  // namespace lockstep::replica
