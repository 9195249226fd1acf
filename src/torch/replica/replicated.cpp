#include "torch/replica/replicated.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <utility>

#include "control/gather_text.h"
#include "torch/device/device.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {
namespace {

// Checks that workers hold the same model, and gives all of them the values of rank `source`.
Model agreed(Comm& comm, int source, Model model, const DataParallelOptions& options) {
  agree_on_model(comm, model, options);
  copy_from(comm, source, model.everything());
  return model;
}

// Says so where all calls meet, for a worker that has come to another one.
Replicated::Wire wire_in(World& world) {
  const auto& announcements = world.announcements();
  const std::uint64_t number = announcements->next_number();
  announcements->say({number}, "data_parallel()");
  return {world.open_channel(), announcements, world.inventory(), number};
}

}  // namespace

Parts::Parts(Comm its_comm, int its_source, Model its_model, const DataParallelOptions& its_options)
    : options(its_options),
      model(agreed(its_comm, its_source, std::move(its_model), its_options)),
      plan{layout_of(model.trained), {}, {}},
      source(its_source),
      comm(std::move(its_comm)) {
  take_memory();
}

void Parts::bind(Comm its_comm, int its_source, Values values) {
  if (encoding) encoding->check_may_move();
  if (values == Values::kOfSource)
    model = agreed(its_comm, its_source, model, options);  // a copy: it stays whole if this throws
  source = its_source;
  neighbours.reset();
  comm = std::move(its_comm);
  take_memory();
}

void Parts::take_memory() {
  const Device device = device_of(model, comm);
  neighbours = neighbours_on(device, comm);
  parameters = make_parameters(workers(), model.trained, plan.layout, device);
  if (!parameters) {
    neighbours.reset();
    parameters = make_private_parameters(comm, model.trained, plan.layout, device);
  }
  buffers = buffer_sync_of(comm, model, options);
  take_gradients();
}

int Parts::source_on_host() const {
  if (!neighbours) return source;
  const std::vector<int>& hosts = comm.hosts();
  const int here = hosts[static_cast<std::size_t>(comm.rank())];
  if (hosts[static_cast<std::size_t>(source)] != here) return 0;
  return static_cast<int>(std::count(hosts.begin(), hosts.begin() + source, here));
}

void Parts::keep_private() {
  if (&parameters->seen() == &parameters->memory()) return;
  const CallName call(comm, "optim::Wrapped");
  parameters->share_values(workers());
  neighbours.reset();
  parameters = make_private_parameters(comm, model.trained, plan.layout, device());
}

void Parts::take_gradients() {
  const Device device = device_of(model, comm);
  FlatMemory gradients = banks ? FlatMemory::again(comm, banks->front().memory())
                               : FlatMemory(comm, plan.layout.bytes(), Copies::kReduced, device);
  gradients.leave_behind(comm, FlatMemory::Use::kGradients);
  if (!encoding) encoding = make_encoding(options, model.trained, plan.layout, device);
  const Reach possible = reach_of(gradients, options.algorithm);
  plan = plan_model(plan.layout, parameters->memory().shared() ? comm.size() : 1,
                    encoding ? encoding->reach(possible) : possible, options);
  reduction.reset();  // it refers to the banks
  auto next =
      std::make_unique<Banks>(model, plan, std::move(gradients), gradients_of(model, plan, device));
  if (banks) next->take_spare(*banks);
  banks = std::move(next);
  reduction = reduction_of(comm, *banks, plan, options, encoding.get());
  may_be_absent() ? banks->front().clear() : banks->front().reset();
}

std::shared_ptr<Replicated> Replicated::make(World& world, std::vector<NamedTensor> parameters,
                                             std::vector<NamedTensor> buffers,
                                             const DataParallelOptions& options) {
  Wire wire = wire_in(world);
  const CallName call(wire.comm, "data_parallel()");
  Model model = sort_tensors(std::move(parameters), std::move(buffers));
  const device::CurrentDevice current(device_of(model, wire.comm));
  const auto inventory = wire.inventory;
  std::shared_ptr<Replicated> replica(new Replicated(std::move(wire), std::move(model), options));
  replica->attachment_.attach({replica, &replica->attachment_});
  inventory->add(replica);
  return replica;
}

Replicated::Replicated(Wire wire, Model model, const DataParallelOptions& options)
    : parts_(std::move(wire.comm), wire.inventory->source(), std::move(model), options),
      attachment_(parts_, options.name.empty() ? "the model" : options.name),
      inventory_(std::move(wire.inventory)) {
  make_passes({std::move(wire.announcements), wire.number});
}

void Replicated::make_passes(DropIn::Identity identity) {
  drop_in_.emplace(parts_, attachment_, std::move(identity));
  shards_.emplace(parts_, attachment_);
  attachment_.tell(*drop_in_);
}

void Replicated::rebind(World& world) {
  attachment_.require_current();
  if (hosts_shards_ || current().active())
    throw BadInput("a model cannot go to other workers in the middle of a step");
  Wire wire = wire_in(world);
  const CallName call(wire.comm, "data_parallel()");
  const device::CurrentDevice current(device());
  inventory_ = std::move(wire.inventory);
  const bool own = inventory_->nobody_is_new();
  parts_.bind(std::move(wire.comm), inventory_->source(),
              own ? Parts::Values::kOwn : Parts::Values::kOfSource);
  make_passes({std::move(wire.announcements), wire.number});
}

namespace {

// As long as it lives, nothing of a model travels; afterwards the model has its options and its buffers again.
class TravelsNowhere {
 public:
  explicit TravelsNowhere(Parts& parts)
      : parts_(parts), options_(parts.options), buffers_(std::exchange(parts.model.buffers, {})) {
    parts_.options.codec = nullptr;
    parts_.options.force_collectives = false;
  }
  ~TravelsNowhere() {
    parts_.options = std::move(options_);
    parts_.model.buffers = std::move(buffers_);
  }
  TravelsNowhere(const TravelsNowhere&) = delete;
  TravelsNowhere& operator=(const TravelsNowhere&) = delete;

 private:
  Parts& parts_;
  DataParallelOptions options_;
  std::vector<NamedTensor> buffers_;
};

}  // namespace

void Replicated::train_alone(World& alone) {
  const TravelsNowhere nowhere(parts_);
  parts_.reduction.reset();  // it refers to the encoding
  parts_.encoding.reset();
  rebind(alone);
}

Replicated::Run::Run(Replicated& model, std::optional<Sharded> sharded) : model_(model) {
  if (model.identity().announcements->turns().under_way()) {
    throw BadInput(
        "a loop over job.batches() inside of a loop of UnevenInputs: a Job gives every worker its "
        "batches itself");
  }
  if (model.parts().options.buffers == BufferSource::kLeaderBeforeForward) {
    throw BadInput(
        "BufferSource::kLeaderBeforeForward is for drop-in loops: the shards of a Step do not run "
        "forward at the same time; JobOptions::buffers says which buffers they get");
  }
  model_.shards_->begin_run(std::move(sharded));
  model_.hosts_shards_ = true;
}

Replicated::Run::~Run() {
  model_.hosts_shards_ = false;
  model_.banks().release();
  model_.drop_in_->start_over();
}

void Replicated::settle() {
  check_attached();
  drop_in_->check_averaged();
  if (!hosts_shards_) find_undefined();
  banks().stay();
}

// As torch::optim does. A gradient that the program has given to a parameter counts, even if no
// worker's backward has reached the parameter.
void Replicated::find_undefined() {
  auto undefined = banks().in_use().undefined();
  if (!undefined) return;
  banks().in_use().untangle();  // another gradient may be in the memory of an undefined one
  const std::vector<bool> absent = banks().absent();  // by backward
  for (std::size_t entry = 0; entry < undefined->size(); ++entry) {
    if (!(*undefined)[entry] || (!absent.empty() && absent[entry])) continue;
    if (!parts_.may_be_absent()) {
      throw BadInput(fmt::format(
          "the gradient of {} is undefined: run backward() after zero_grad(), before step(). If "
          "the program made it undefined on purpose, make the model with MissingGradient::kZero: "
          "the step then leaves this parameter alone",
          parts_.plan.layout.entries()[entry].name));
    }
    banks().in_use().zero(entry);
  }
  const bool any = std::find(undefined->begin(), undefined->end(), true) != undefined->end();
  banks().set_absent(any ? std::move(*undefined) : std::vector<bool>());
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
  drop_in_->synchronize();
}

void Replicated::sync_buffers() {
  attachment_.require_current();
  drop_in_->sync_buffers();
}

void Replicated::before_forward() {
  drop_in_->before_forward();
}

void Replicated::zero_grad() {
  attachment_.require_current();
  drop_in_->zero_grad();
  check_attached();
}

bool Replicated::identical() {
  attachment_.require_current();
  const CallName call(comm(), "identical()");
  const auto digests = control::gather_text(comm(), digest(model().everything()));
  return std::equal(digests.begin() + 1, digests.end(), digests.begin());
}

}  // namespace lockstep::replica
