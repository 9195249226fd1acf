// Everything in this folder that depends on the device of the model.
#include "torch/device/device.h"
#include "torch/optim/update.h"

namespace lockstep::optim {
namespace {

bool on_host(Device device) {
  return device.kind == DeviceKind::kCpu;
}

}  // namespace

bool can_sample(const replica::Replicated& model) {
  return on_host(model.device());
}

std::unique_ptr<Update> make_update(Trained& trained) {
  const device::CurrentDevice current(trained.model->device());
  if (!on_host(trained.model->device())) return make_device_step(trained);
  if (trained.model->parameters().shared()) return make_shared_update(trained);
  return make_own_update(trained);
}

std::unique_ptr<Update> make_wrapped_update(Trained& trained,
                                            const std::shared_ptr<WrappedOptimizer>& optimizer) {
  const device::CurrentDevice current(trained.model->device());
  return on_host(trained.model->device()) ? make_wrapped_on_host(trained, optimizer)
                                          : make_wrapped_on_device(trained, optimizer);
}

}  // namespace lockstep::optim
