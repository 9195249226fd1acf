#include "torch/replica/replicated.h"

#include <lockstep/errors.h>

#include <algorithm>
#include <utility>

#include "control/gather_text.h"
#include "torch/device/device.h"
#include "torch/replica/device_choice.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {

Parts::Parts(Comm its_comm, Model its_model, FlatParameters flat, FlatMemory gradients,
             const DataParallelOptions& its_options)
    : options(its_options),
      model(std::move(its_model)),
      plan(plan_model(layout_of(model.trained), gradients.shared() ? its_comm.size() : 1,
                      reach_of(gradients, options.algorithm), options)),
      parameters(std::move(flat)),
      buffers(buffer_sync_of(its_comm, model.buffers, gradients.device())),
      comm(std::move(its_comm)) {
  const Device device = gradients.device();
  banks =
      std::make_unique<Banks>(model, plan, std::move(gradients), gradients_of(model, plan, device));
  reduction = reduction_of(comm, *banks, plan, options);
  may_be_absent() ? banks->front().clear() : banks->front().reset();
}

std::shared_ptr<Replicated> Replicated::make(Wire wire, std::vector<NamedTensor> parameters,
                                             std::vector<NamedTensor> buffers,
                                             const DataParallelOptions& options) {
  Comm& comm = wire.comm;
  const CallName call(comm, "data_parallel()");
  Model model = sort_tensors(std::move(parameters), std::move(buffers));
  agree_on_model(comm, model, options);
  copy_from_leader(comm, model.everything());
  const plan::Layout layout = layout_of(model.trained);
  const Device device = device_of(model, comm);
  const device::CurrentDevice current(device);
  FlatParameters flat(comm, model.trained, layout,
                      options.share_parameters ? Copies::kPerHost : Copies::kPerWorker, device);
  FlatMemory gradients(comm, layout.bytes(), Copies::kPerWorker, device);
  std::shared_ptr<Replicated> replica(new Replicated(
      std::move(wire), std::move(model), std::move(flat), std::move(gradients), options));
  replica->attachment_.attach({replica, &replica->attachment_});
  return replica;
}

Replicated::Replicated(Wire wire, Model model, FlatParameters parameters, FlatMemory gradients,
                       const DataParallelOptions& options)
    : parts_(std::move(wire.comm), std::move(model), std::move(parameters), std::move(gradients),
             options),
      attachment_(parts_.model, parts_.plan.layout, parts_.parameters,
                  options.name.empty() ? "the model" : options.name),
      drop_in_(parts_, attachment_, {std::move(wire.announcements), wire.number}),
      shards_(parts_, attachment_) {
  attachment_.tell(drop_in_);
}

Replicated::Run::Run(Replicated& model, std::optional<Sharded> sharded) : model_(model) {
  model_.shards_.begin_run(std::move(sharded));
  model_.hosts_shards_ = true;
}

Replicated::Run::~Run() {
  model_.hosts_shards_ = false;
  model_.banks().release();
  model_.drop_in_.begin_anew();
}

void Replicated::settle() {
  check_attached();
  drop_in_.check_averaged();
  banks().in_use().stay();
  banks().hide_absent();
}

void Replicated::check_attached() {
  attachment_.require_current();
  if (current().active()) {
    throw BadInput(
        "the last backward pass was broken off and left no average: call zero_grad() and run it "
        "again");
  }
  attachment_.check(banks().in_use());
}

void Replicated::synchronize() {
  attachment_.require_current();
  drop_in_.synchronize();
}

void Replicated::zero_grad() {
  attachment_.require_current();
  drop_in_.zero_grad();
  check_attached();
}

bool Replicated::identical() {
  attachment_.require_current();
  const CallName call(comm(), "identical()");
  const auto digests = control::gather_text(comm(), digest(model().everything()));
  return std::equal(digests.begin() + 1, digests.end(), digests.begin());
}

}  // namespace lockstep::replica
