// Backward passes over a replica, and what happens to their gradients. A class for each kind of
// pass:
//
//   DropIn       loss.backward() in the drop-in loop. At the end of every pass outside of no_sync()
//                the gradients of all workers are averaged
//   ShardPass    the pass of one shard in a Step. Its gradients go to a bank. The last pass of a
//                step reduces what the banks hold
//   MeasuredPass around a ShardPass: also takes the norm of the shard's gradient (measured_pass.h)
//   CapturePass  a pass on a GPU that is captured as a graph, and replayed later (device::Graph)
#pragma once

#include <lockstep/data_parallel.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "control/announcements.h"
#include "control/turns.h"
#include "torch/device/device.h"
#include "torch/replica/arrivals.h"
#include "torch/replica/attachment.h"
#include "torch/replica/parts.h"
#include "torch/replica/weight_sample.h"

namespace lockstep::replica {

// What DropIn and ShardPass have in common: gradients arrive, buckets go to the wire. Replicated owns
// one of each, and its Attachment tells one of the two at a time.
//
// Threads:   one caller at a time; hooks run as Attachment says.
// Blocking:  end() of a pass that reduces, and ShardPass::complete(), at most the Comm's timeout.
// Failure:   as Replica.
// Ownership: borrows the parts and the attachment.
class Pass : public PassListener {
 public:
  void before(std::size_t entry) override;

  // Whether a pass is under way. If it is true outside of backward(), that pass was broken off.
  bool active() const { return active_; }
  const BackwardTimes& times() const { return clock_.times(); }

 protected:
  Pass(Parts& parts, Attachment& attachment);

  // Called before the first gradient of a pass is taken.
  virtual void begin() = 0;
  void start(bool reduces);
  void arrive(std::size_t entry, const torch::Tensor& incoming);
  void take_back_moved();

  // `sharded`: null if each worker has one gradient.
  void launch(std::size_t bucket, double factor, const Sharded* sharded);
  void launch_rest(double factor, const Sharded* sharded);

  Parts& parts_;
  Attachment& attachment_;
  Arrivals arrivals_;
  PassClock clock_;
  bool active_ = false;
  bool reduces_ = false;  // whether the pass under way ends in a reduction
};

class DropIn : public Pass {
 public:
  // Which replica it is, as workers tell each other.
  struct Identity {
    std::shared_ptr<control::Announcements> announcements;
    std::uint64_t number = 0;  // by the order in which replicas are made
    std::uint64_t passes = 0;  // synchronised passes so far
  };
  DropIn(Parts& parts, Attachment& attachment, Identity identity);

  void ready(std::size_t entry, const torch::Tensor& incoming) override;
  void end() override;
  void expect(std::optional<double> weight) override { weight_ = weight; }
  bool idle() const override { return turns().idle(); }

  void suspend_sync() { ++suspended_; }
  void resume_sync() { --suspended_; }

  // Averages what no_sync() has added up, without a pass.
  void synchronize();
  // Gives all workers the same buffers, as at the end of a pass. Collective.
  void sync_buffers();
  // Does so with BufferSource::kLeaderBeforeForward, as that says.
  void before_forward();
  // Forgets what was added up, and clears all gradients.
  void zero_grad();
  // Listens again after a ShardPass, as if there had been no pass.
  void start_over();
  // BadInput if no_sync() has added up gradients that were not averaged.
  void check_averaged() const;

  const Identity& identity() const { return identity_; }

 private:
  // What was added up since the last average. On this worker at first; hear_notes() makes the
  // weights those of all workers.
  struct Since {
    std::array<double, 3> weights{};  // their sum, how many passes had one, and how many had none
    // FlatGradients::versions(), to find out whether the program wrote to gradients since.
    std::vector<std::int64_t> pending;   // after a weighted pass in no_sync()
    std::vector<std::int64_t> averaged;  // after the last average
    // Banks::present() before the first pass of this worker that was idle.
    std::optional<std::vector<std::uint8_t>> before_idle;
  };
  // What the workers tell each other of the pass under way.
  struct Notes {
    std::shared_ptr<const control::Announcement> all;  // null before this worker has said its own
    bool heard = false;                                // all have come and were compared
    bool plain = false;                                // a pass of this worker had no weight
  };

  void begin() override;
  void add_weight();
  void finish();
  void find_absent(std::vector<std::uint8_t> has);
  void forget();
  void launch_ready();
  void say_note();
  void hear_notes();
  const std::vector<control::Record>& compared(const control::Announcement& said);
  std::optional<double> known_divisor();
  double divisor();
  void check_cleared(std::size_t entry) const;
  void check_pending(std::size_t entry) const;
  static void check_weights(const std::array<double, 3>& weights);
  const control::Turns& turns() const { return identity_.announcements->turns(); }

  Identity identity_;
  std::unique_ptr<WeightSample> sample_;  // null: weights are not compared
  Since since_;
  Notes notes_;
  std::optional<double> weight_;  // of the next pass
  int suspended_ = 0;             // NoSync scopes that are alive
  // With MissingGradient::kStatic: which gradients no worker ever has; empty before the first pass.
  std::vector<bool> always_absent_;
  bool forward_syncs_ = true;  // the next before_forward()
};

class ShardPass : public Pass {
 public:
  ShardPass(Parts& parts, Attachment& attachment) : Pass(parts, attachment) {}

  // Listens from now on. `sharded` says which banks to reduce; nullopt: one gradient of each
  // worker.
  void begin_run(std::optional<Sharded> sharded);

  void ready(std::size_t entry, const torch::Tensor& incoming) override;
  void end() override;
  void expect(std::optional<double>) override {}

  // Whether the Step has called backward(). A pass that nobody awaits is BadInput: a loss that runs its own would add its
  // gradients twice.
  void await_pass(bool awaited) { awaited_ = awaited; }

  // Where a reduction is waited for: at the end of the pass that begins it, or in complete(), which the program calls later.
  // Gradients are not to be touched meanwhile.
  enum class Waits : bool { kAtEnd, kInComplete };

  // The next pass reduces, and divides the sum over all shards by `divisor`.
  void reduce_next(double divisor, Waits waits) {
    divisor_ = divisor;
    waits_ = waits;
  }

  // Reduces without a pass: for a worker whose last shard has no samples.
  void reduce(double divisor, Waits waits);

  // The averages are there. Does nothing if they are already.
  void complete();

  // Ends a step without a reduction: the update reads everybody's banks. Checks that no gradient is
  // missing. Collective, if gradients may be absent.
  void finish_unreduced();

  // The gradients that a captured graph makes.
  struct Captured {
    std::vector<torch::Tensor> gradients;  // by entry; undefined if there is none
    std::vector<bool> own;                 // by entry: as in device_gradients.h
    std::vector<device::Event> ready;      // by bucket: complete; empty if nothing travels
  };
  // After a replay of the graph: does what a pass with these gradients does. (device_pass.cpp)
  void replayed(const Captured& captured);

 private:
  void begin() override;
  void send();
  const Sharded* sharded() const { return sharded_ ? &*sharded_ : nullptr; }

  std::optional<Sharded> sharded_;
  std::optional<double> divisor_;
  Waits waits_ = Waits::kAtEnd;
  std::optional<std::vector<std::uint8_t>>
      under_way_;  // Banks::present(), of a reduction that complete() has to end
  bool awaited_ = false;
  bool ran_ = false;  // whether a pass ran since the last reduction
};

// Listens to the pass that is captured. Made before the graph's body, whose last line is finish().
// Its destructor makes gradients undefined again, also if the body threw.
class CapturePass : public PassListener {
 public:
  // `next` is told of passes afterwards.
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
