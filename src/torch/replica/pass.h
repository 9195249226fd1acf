// Backward passes over a replica, and what becomes of their gradients: a class for each kind of pass.
//
//   DropIn      loss.backward() of a program's own loop: each worker's gradients are averaged at the end of every pass
//               that is not in no_sync()
//   ShardPass   a pass of one of the shards that a worker hosts: its gradients go to a bank, and the last pass of a step
//               reduces what the banks hold
//   CapturePass a pass on a GPU that is captured as a graph, and replayed as often as one likes (device::Graph)
#pragma once

#include <lockstep/data_parallel.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/announcements.h"
#include "torch/device/device.h"
#include "torch/replica/arrivals.h"
#include "torch/replica/attachment.h"
#include "torch/replica/parts.h"
#include "torch/replica/weight_sample.h"

namespace lockstep::replica {

// What they have in common: gradients arrive, buckets go to the wire.
//
// Threads:   one caller at a time; hooks run as Attachment says.
// Blocking:  end() of a pass that reduces, at most the Comm's timeout.
// Failure:   as Replica.
// Ownership: borrows the parts and the attachment.
class Pass : public PassListener {
 public:
  void before(std::size_t entry) override;

  // Broken off, if it is so outside of backward().
  bool active() const { return active_; }
  const BackwardTimes& times() const { return clock_.times(); }

 protected:
  Pass(Parts& parts, Attachment& attachment);

  // The first gradient of a pass is there.
  virtual void begin() = 0;
  void start(bool reduces);
  void arrive(std::size_t entry, const torch::Tensor& incoming);
  void take_back_moved();

  void launch(std::size_t bucket, double factor, const Sharded* sharded);
  void launch_rest(double factor, const Sharded* sharded);

  Parts& parts_;
  Attachment& attachment_;
  Arrivals arrivals_;
  PassClock clock_;
  bool active_ = false;
  bool reduces_ = false;  // the pass under way
};

class DropIn : public Pass {
 public:
  // What tells this replica from others.
  struct Identity {
    std::shared_ptr<control::Announcements> announcements;
    std::uint64_t number = 0;  // by the order in which replicas are made
    std::uint64_t passes = 0;  // synchronised ones
  };
  DropIn(Parts& parts, Attachment& attachment, Identity identity);

  void ready(std::size_t entry, const torch::Tensor& incoming) override;
  void end() override;
  void expect(std::optional<double> weight) override { weight_ = weight; }

  void suspend_sync() { ++suspended_; }
  void resume_sync() { --suspended_; }

  // Averages what was added up, without a pass.
  void synchronize();
  // Forgets it, and clears all gradients.
  void zero_grad();
  // Passes are a program's own again, as if there had been none.
  void begin_anew();
  // BadInput if something was added up and not averaged.
  void check_averaged() const;

  const Identity& identity() const { return identity_; }

 private:
  // What no_sync() and the pass have added up on this worker since the last average.
  struct Since {
    std::array<double, 3> weights{};  // their sum, how many passes had one, and how many had none
    std::vector<std::int64_t>
        pending;  // versions of the gradients after a weighted pass in no_sync()
    std::vector<std::int64_t> averaged;  // the same after the last average
  };
  // What the workers tell each other of the pass under way.
  struct Notes {
    std::shared_ptr<const control::Announcement> all;  // from the first gradient on
    bool heard = false;                                // and compared
    bool plain = false;                                // this worker's passes had no weights
  };

  void begin() override;
  void add_weight();
  void finish();
  void forget();
  void launch_ready();
  void say_note();
  void hear_notes();
  std::optional<double> known_divisor();
  double divisor();
  void check_cleared(std::size_t entry) const;
  void check_pending(std::size_t entry) const;
  static void check_weights(const std::array<double, 3>& weights);

  Identity identity_;
  std::unique_ptr<WeightSample> sample_;  // where there are others to compare with
  Since since_;
  Notes notes_;
  std::optional<double> weight_;  // of the pass to come
  int suspended_ = 0;
};

class ShardPass : public Pass {
 public:
  ShardPass(Parts& parts, Attachment& attachment) : Pass(parts, attachment) {}

  // Passes are of shards from here on, and reduce what the banks hold of them; nothing: one gradient of each worker.
  void begin_run(std::optional<Sharded> sharded);

  void ready(std::size_t entry, const torch::Tensor& incoming) override;
  void end() override;
  void expect(std::optional<double>) override {}

  // The next pass reduces, and divides the sum over all shards by this.
  void reduce_next(double divisor) { divisor_ = divisor; }

  // Reduces without a pass: for a worker whose last shard has no samples.
  void reduce(double divisor);

  // Ends a step that nobody reduced here: checks that no gradient is missing. Collective, where one may be absent.
  void finish_unreduced();

  // What backward made in a graph that was captured, by entry, and a point for each bucket at which its gradients are
  // there, if anybody waits for them.
  struct Captured {
    std::vector<torch::Tensor> gradients;  // undefined where there is none
    std::vector<bool> own;                 // whether its memory is (device_gradients.h)
    std::vector<device::Event> ready;
  };
  // After a replay of the graph: the same as a pass that made them. (device_pass.cpp)
  void replayed(const Captured& captured);

 private:
  void begin() override;
  void finish();
  const Sharded* sharded() const { return sharded_ ? &*sharded_ : nullptr; }

  std::optional<Sharded> sharded_;
  std::optional<double> divisor_;
  bool ran_ = false;  // some pass, since the last reduction
};

// Listens to the pass that is captured. Made before the graph's body; finish() is its last line. Without that, as when
// something was thrown, gradients are undefined again, and nothing is left of it.
class CapturePass : public PassListener {
 public:
  // `next` is told of passes again after this one.
  CapturePass(Parts& parts, Attachment& attachment, PassListener& next);
  ~CapturePass() override;
  CapturePass(const CapturePass&) = delete;
  CapturePass& operator=(const CapturePass&) = delete;

  ShardPass::Captured finish();

  void before(std::size_t) override {}
  void ready(std::size_t entry, const torch::Tensor& incoming) override;
  void end() override {}
  void expect(std::optional<double>) override {}

 private:
  void mark(std::size_t entry);

  Parts& parts_;
  Attachment& attachment_;
  PassListener& next_;
  Ledger ledger_;
  ShardPass::Captured captured_;
};

}  // namespace lockstep::replica
