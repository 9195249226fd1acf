#include "torch/replica/device_choice.h"

#include <utility>

#include "torch/replica/device_gradients.h"
#include "torch/replica/device_reduction.h"

namespace lockstep::replica {

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

std::unique_ptr<Reduction> reduction_of(Comm& comm, Banks& banks, const ModelPlan& plan,
                                        const DataParallelOptions& options) {
  const FlatMemory& gradients = banks.front().memory();
  const Device device = gradients.device();
  if (device.kind == DeviceKind::kCpu) {
    if (reach_of(gradients, options.algorithm) == Reach::kMemory)
      return std::make_unique<OnePassReduction>(comm, banks);
    return std::make_unique<MessageReduction>(comm, banks);
  }
  if (comm.size() == 1 && !options.force_collectives)
    return std::make_unique<LoneDeviceReduction>(banks);
  return std::make_unique<DeviceReduction>(comm, banks, plan.layout, device);
}

}  // namespace lockstep::replica
