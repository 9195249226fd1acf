// What a Replica handle holds: a model on this worker, hooked into backward.
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

// Threads:   one caller at a time; hooks run on the thread that calls backward(), or,
//            on a GPU, on one of LibTorch's while that waits.
// Blocking:  make(), finish and the collective members, at most the Comm's timeout.
// Failure:   as Replica.
// Ownership: shares the tensors; owns the gradients' memory with them.
class Replicated : public control::Member, public std::enable_shared_from_this<Replicated> {
 public:
  // How a replica reaches those of the other workers, and what it is called.
  struct Wire {
    Comm comm;
    std::shared_ptr<control::Announcements> announcements;
    std::shared_ptr<control::Inventory> inventory;
    std::uint64_t number;  // of this replica, by the order in which they are made
  };
  static std::shared_ptr<Replicated> make(World& world, std::vector<NamedTensor> parameters,
                                          std::vector<NamedTensor> buffers,
                                          const DataParallelOptions& options);

  // Between steps, with no Run.
  void rebind(World& world) override;

  // A program's own loop.
  DropIn& drop_in() { return *drop_in_; }
  void synchronize();
  void zero_grad();
  bool identical();

  // Shards that this worker hosts, as long as a Run lives: passes are theirs, and what the banks hold is reduced;
  // `sharded`: nothing if each worker has one. Both are the program's again after, with no gradients.
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

  // Waits until every gradient is where an update reads it: call it before. BadInput, naming the parameter, if a gradient
  // or a hook is not where it was put and cannot be put back, or if the model was wrapped again.
  void settle();
  void check_attached();

  // Whether every worker can read all gradients where they are: then they are reduced in one pass, at the
  // end. Not if another algorithm was asked for.
  bool reads_all_gradients() const { return !parts_.reduction->early(); }

  // As Parts.
  void keep_one_copy() { parts_.keep_one_copy(); }

  // Lockstep itself has written to the parameters, on all workers.
  void note_update() { parts_.parameters->note_update(); }

  Parts& parts() { return parts_; }
  const Parts& parts() const { return parts_; }
  Attachment& attachment() { return attachment_; }

  Banks& banks() { return *parts_.banks; }
  const Banks& banks() const { return *parts_.banks; }
  const plan::Layout& layout() const { return parts_.plan.layout; }
  const plan::Pieces& pieces() const { return parts_.plan.pieces; }
  const Model& model() const { return parts_.model; }
  const FlatMemory& gradients() const { return parts_.banks->front().memory(); }
  const FlatMemory& parameters() const { return parts_.parameters->memory(); }
  // All buffers, if they lie in one memory, as on a GPU; else null.
  const FlatMemory* buffer_memory() const { return parts_.buffers->memory(); }
  Device device() const { return parts_.device(); }
  divergence::FirstFault& faults() { return parts_.faults; }
  Comm& comm() { return parts_.comm; }
  const DropIn::Identity& identity() const { return drop_in_->identity(); }
  control::Inventory& inventory() { return *inventory_; }

 private:
  Replicated(Wire wire, Model model, const DataParallelOptions& options);
  void make_passes(DropIn::Identity identity);
  Pass& current() { return hosts_shards_ ? static_cast<Pass&>(*shards_) : *drop_in_; }

  Parts parts_;
  Attachment attachment_;
  std::optional<DropIn> drop_in_;
  std::optional<ShardPass> shards_;
  std::shared_ptr<control::Inventory> inventory_;
  bool hosts_shards_ = false;
};

// What a handle holds, for the layers above.
struct Inside {
  static const std::shared_ptr<Replicated>& of(const Replica& model) { return model.state_; }
};
inline Replicated& inside(const Replica& model) {
  return *Inside::of(model);
}

}  // namespace lockstep::replica
