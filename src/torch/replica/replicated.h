// What a Replica handle holds: the model of this worker, its parts, and its hooks in backward.
#pragma once

#include <lockstep/data_parallel.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "control/announcements.h"
#include "control/inventory.h"
#include "torch/replica/attachment.h"
#include "torch/replica/parts.h"
#include "torch/replica/pass.h"

namespace lockstep::replica {

// Owned by Replica handles and optimizers together, through shared pointers.
//
// Threads:   one caller at a time; hooks run as Attachment says.
// Blocking:  make(), rebind(), synchronize(), sync_buffers() and identical(), which are collective;
//            at most the Comm's timeout.
// Failure:   as Replica.
// Ownership: shares the tensors; tensors that view its memory keep that memory alive.
class Replicated : public control::Member {
 public:
  // How a replica reaches those of the other workers, and which of them it is.
  struct Wire {
    Comm comm;
    std::shared_ptr<control::Announcements> announcements;
    std::shared_ptr<control::Inventory> inventory;
    std::uint64_t number;  // by the order in which replicas are made
  };
  static std::shared_ptr<Replicated> make(World& world, std::vector<NamedTensor> parameters,
                                          std::vector<NamedTensor> buffers,
                                          const DataParallelOptions& options);

  // Goes on in another world. Only between steps, while no Run lives. Collective.
  void rebind(World& world) override;

  // The same for a world of one worker, where it stays until the next rebind(). Nothing travels there: no codec is used, and
  // buffers stay in the memory of whoever shares them with it.
  void train_alone(World& alone);

  // The drop-in loop.
  DropIn& drop_in() { return *drop_in_; }
  void synchronize();
  void sync_buffers();
  void before_forward();
  void zero_grad();
  bool identical();

  // While a Run lives, passes are those of shards, and what the banks hold is reduced. `sharded` as
  // in ShardPass::begin_run(). Afterwards passes are the program's again, and gradients are
  // cleared.
  class Run {
   public:
    Run(Replicated& model, std::optional<Sharded> sharded);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    Replicated& model_;
  };
  ShardPass& shards() { return *shards_; }
  bool hosts_shards() const { return hosts_shards_; }

  // Puts every gradient where an update reads it. An update calls it first. BadInput from
  // check_attached(), if gradients were not averaged, or if one is undefined that may not be.
  void settle();
  // Copies moved parameters back, and hooks new accumulators. BadInput, naming the parameter, if
  // that cannot be; also if the model was wrapped again, or the last pass was broken off.
  void check_attached();

  // Whether every worker reads all gradients in shared memory. Then an update can reduce them on
  // the way.
  bool reads_all_gradients() const { return !parts_.reduction->early(); }

  // As Parameters. Collective. loads(): how often, because each time something else than an update
  // has written to parameters.
  void share_values() {
    parts_.parameters->share_values(parts_.workers());
    ++loads_;
  }
  void share_on_host() {
    parts_.parameters->share_on_host(parts_.host());
    ++loads_;
  }
  std::uint64_t loads() const { return loads_; }

  Parts& parts() { return parts_; }
  const Parts& parts() const { return parts_; }
  Attachment& attachment() { return attachment_; }

  Banks& banks() { return *parts_.banks; }
  const Banks& banks() const { return *parts_.banks; }
  const plan::Layout& layout() const { return parts_.plan.layout; }
  const plan::Pieces& pieces() const { return parts_.plan.pieces; }
  const Model& model() const { return parts_.model; }
  // Where an update reads gradients, and where it reads and writes parameters.
  const FlatMemory& averages() const { return parts_.banks->front().averaged(); }
  const FlatMemory& parameters() const { return parts_.parameters->memory(); }
  // All buffers, if they are in one flat memory, as on a GPU; else null.
  const FlatMemory* buffer_memory() const { return parts_.buffers->memory(); }
  Device device() const { return parts_.device(); }
  divergence::FirstFault& faults() { return parts_.faults; }
  Comm& comm() { return parts_.comm; }
  const DropIn::Identity& identity() const { return drop_in_->identity(); }
  control::Inventory& inventory() { return *inventory_; }

 private:
  Replicated(Wire wire, Model model, const DataParallelOptions& options);
  void make_passes(DropIn::Identity identity);
  void find_undefined();
  Pass& current() { return hosts_shards_ ? static_cast<Pass&>(*shards_) : *drop_in_; }

  Parts parts_;
  Attachment attachment_;
  std::optional<DropIn> drop_in_;
  std::optional<ShardPass> shards_;
  std::shared_ptr<control::Inventory> inventory_;
  bool hosts_shards_ = false;
  std::uint64_t loads_ = 0;
};

// Lets the folders above reach what a handle holds.
struct Inside {
  static const std::shared_ptr<Replicated>& of(const Replica& model) { return model.state_; }
};
inline Replicated& inside(const Replica& model) {
  return *Inside::of(model);
}

}  // namespace lockstep::replica
