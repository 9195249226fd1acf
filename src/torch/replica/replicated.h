// What a Replica handle holds: a model hooked into backward, with two verbs for the pass: a gradient
// is ready; wait for the rest.
//
//   pass     one synchronised backward, from its first gradient to the average
//   launch   a bucket whose gradients are all there goes to the wire while backward still runs; where
//            workers share memory nothing is launched before the end, one pass over it is so fast
//   finish   at the end of backward: the remaining buckets, the buffers; then the waits
#pragma once

#include <lockstep/data_parallel.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "control/announcements.h"
#include "plan/buckets.h"
#include "plan/layout.h"
#include "plan/slices.h"
#include "plan/tree.h"
#include "torch/device/device.h"
#include "torch/replica/fault.h"
#include "torch/replica/flat_gradients.h"
#include "torch/replica/flat_parameters.h"
#include "torch/replica/ledger.h"
#include "torch/replica/model.h"
#include "torch/replica/pass_note.h"
#include "torch/replica/weight_sample.h"

namespace lockstep::replica {

// The same entries in the types in which they are added up; nothing if all of them are.
std::optional<plan::Layout> layout_of_sums(const plan::Layout& layout);

// Threads:   one caller at a time; hooks run on the thread that calls backward(), or,
//            on a GPU, on one of LibTorch's while that waits.
// Blocking:  make(), finish and the collective members, at most the Comm's timeout.
// Failure:   as Replica.
// Ownership: shares the tensors; owns the gradients' memory with them.
class Replicated : public std::enable_shared_from_this<Replicated> {
 public:
  // How a replica reaches those of the other workers, and what it is called.
  struct Wire {
    Comm comm;
    std::shared_ptr<control::Announcements> announcements;
    std::uint64_t number;  // of this replica, by the order in which they are made
  };
  ~Replicated();
  static std::shared_ptr<Replicated> make(Wire wire, std::vector<NamedTensor> parameters,
                                          std::vector<NamedTensor> buffers,
                                          const DataParallelOptions& options);

  void backward(const torch::Tensor& loss, std::int64_t samples);
  void synchronize();
  void zero_grad();
  bool identical();

  // Waits until every gradient is in the flat memory: call it before reading that. BadInput, naming the parameter, if a
  // gradient or a hook is not where it was put and cannot be put back, or if the model was wrapped again.
  void settle();
  void check_attached();

  // On a GPU gradients stay where backward has made them; nothing if they cannot be read there. bring_gradients() moves
  // them into gradients(), on the current stream.
  std::optional<std::vector<const void*>> gradient_whereabouts() const {
    return banks_[bank_in_use_].whereabouts();
  }
  void bring_gradients() { settle_bank(); }
  Device device() const { return gradients().device(); }
  bool on_device() const { return device().kind != DeviceKind::kCpu; }

  // A backward pass on a GPU that is captured, and then replayed as often as one likes (device::Graph): what backward
  // made, by entry, and a point for each bucket at which its gradients are there, unless the worker reduces alone. begin_capture() comes before the graph's
  // body, end_capture() at its end, and replayed() after every replay, in place of what a pass does.
  struct Captured {
    std::vector<torch::Tensor> gradients;  // undefined where there is none
    std::vector<bool> own;                 // whether its memory is (flat_gradients.h)
    std::vector<device::Event> ready;
  };
  void begin_capture();
  Captured end_capture();
  void cancel_capture();  // when something was thrown on the way
  void replayed(const Captured& captured);

  // The parameters that the model has now: compared with those of before at every synchronised pass.
  using Listing = std::function<std::vector<torch::Tensor>()>;
  void watch_module(Listing listing);

  // Lockstep itself has written to the parameters, on all workers.
  void note_update() { parameters_.note_update(); }

  // By entry: whether no worker has a gradient for it, where that is allowed; then param.grad is undefined, and updates
  // leave it alone. Empty: every entry has one.
  const std::vector<bool>& absent() const { return absent_; }
  void hide_absent();
  bool may_be_absent() const { return options_.missing_gradient == MissingGradient::kZero; }

  const std::shared_ptr<control::Announcements>& announcements() const {
    return identity_.announcements;
  }
  std::uint64_t number() const { return identity_.number; }

  // Hooks anew, for the current stream: a backward pass accumulates on the one that was current when its hook was made.
  void install_hooks();

  // For whoever weighs shards itself: the sum of all workers' gradients is divided by `total`
  // in place of the number of workers; nothing: the number of workers.
  void set_divisor(std::optional<double> total) { divisor_ = total; }

  // Ends a step whose passes were all in no_sync(), for whoever reduces the gradients itself: checks
  // that none is missing, and synchronises the buffers. Collective.
  void finish_unreduced();

  // Whether every worker can read all gradients where they are: then they are reduced in one pass, at the
  // end. Not if another algorithm was asked for.
  bool reads_all_gradients() const;
  const std::vector<plan::Bucket>& buckets() const { return buckets_; }

  // One copy of the parameters per host from here on, where workers share memory. Collective.
  void keep_one_copy() { parameters_.keep_one_copy(comm_); }

  // Memories for the gradients of several shards: backward adds to the one in use. The first is gradients() itself,
  // unless sums in a parameter's own type would be rounded on the way: half gradients of several shards are added up in
  // float32, and all banks are apart. make_banks() is collective.
  enum class BankHolds : bool { kOneShard, kSums };
  void make_banks(int count, BankHolds holds);
  void use_bank(int bank);
  const FlatMemory& bank(int bank) const { return banks_[place_of(bank)].memory(); }
  const plan::Layout& bank_layout() const { return wide_ ? *wide_ : layout_; }
  void begin_bank(int bank);  // and use it, cleared
  void add_banks(int into, int from);

  // Uses gradients(), which are what they were, or the averages that were reduced into the first bank: sums in float32
  // are rounded here.
  void use_gradients();
  void use_averages();

  // Watches all banks for bits that change on their own, until release_banks(): param.grad is hidden while a shard adds
  // to a bank. Only where every worker reads all gradients. Collective.
  void watch_gradients();
  // Back to gradients(), unwatched and cleared.
  void release_banks();
  bool watches_gradients() const { return banks_.back().watched(); }
  const comm::Parity* parities(int bank, int worker) const {
    return banks_[place_of(bank)].parities_of(worker);
  }
  FirstFault& faults() { return faults_; }

  // What optimizers update at a time: every worker's slice where they share memory, else one worker's of everything.
  const plan::Pieces& pieces() const { return pieces_; }

  // For whoever hosts several shards: what the banks hold is reduced over `shards` in place of one
  // gradient per worker; nothing: that.
  struct Sharded {
    int shards = 0;
    std::vector<int> held;                  // banks, in shard order
    std::vector<plan::Reduction> partials;  // over consecutive ones of them
  };
  void set_sharded(std::optional<Sharded> sharded) { sharded_ = std::move(sharded); }

  // Whether each pass must have a gradient for every parameter, where a missing one is an error, or all passes of this
  // worker together. The Trainer wants the first: which shards a worker has is no matter of the job.
  void set_checks_each_pass(bool checks) { checks_each_pass_ = checks; }

  // Whether buffers are synchronised at the end of a pass; the Trainer does it itself.
  void set_syncs_buffers(bool syncs) { syncs_buffers_ = syncs; }
  bool syncs_buffers() const { return syncs_buffers_; }

  void suspend_sync() { ++suspended_; }
  void resume_sync() { --suspended_; }

  const plan::Layout& layout() const { return layout_; }
  const FlatMemory& gradients() const { return banks_.front().memory(); }
  // All buffers, where they are on a GPU.
  const std::optional<FlatMemory>& buffer_memory() const { return buffer_sync_.on_device(); }
  const FlatMemory& parameters() const { return parameters_.memory(); }
  const Model& model() const { return model_; }
  Algorithm algorithm() const { return options_.algorithm; }  // that was asked for
  const BackwardTimes& times() const { return pass_.times; }
  Comm& comm() { return comm_; }

 private:
  class Hook;
  using Clock = std::chrono::steady_clock;

  // The backward pass under way.
  struct Pass {
    bool active = false;
    bool synchronised = false;
    std::shared_ptr<const control::Announcement> notes;  // from the first gradient on
    bool heard = false;                                  // and compared
    bool plain = false;                                  // this worker's passes had no weights
    std::vector<Work> works;                             // by bucket
    std::vector<torch::Tensor> outside;  // gradients that they reduce where backward made them
    Clock::time_point began;
    BackwardTimes times;
  };
  // What no_sync() and the pass have added up on this worker since the last synchronisation. The
  // first three travel: the sum of weights, and how many passes were weighted and plain.
  struct Since {
    std::array<double, 3> weights{};
    std::vector<bool> reached;  // by entry: some pass had a gradient for it
  };

  // What tells this replica from others.
  struct Identity {
    std::shared_ptr<control::Announcements> announcements;
    std::uint64_t number = 0;
    std::string name;
    std::uint64_t passes = 0;  // synchronised ones
  };

  Replicated(Wire wire, Model model, FlatParameters parameters, FlatMemory gradients,
             const DataParallelOptions& options);
  // Hooks and memory, and how they stay together: attachment.cpp
  void watch_parameters();
  void retire_earlier();
  void retire();
  void require_current() const;
  void gradient_comes(std::size_t entry);
  void take_back_moved();
  void rehook();
  [[noreturn]] static void throw_frozen(const std::string& parameter);

  void begin_if_first();
  void gradient_ready(std::size_t entry, const torch::Tensor& incoming);
  void captured_ready(std::size_t entry);
  void begin_pass(bool synchronised);
  void add_weight();
  void end_pass();
  void forget();
  void forget_reached();
  void check_cleared(std::size_t entry) const;
  void check_pending(std::size_t entry) const;
  void check_module() const;
  void launch_ready();
  void say_note();
  void hear_notes();
  std::vector<std::uint8_t> present() const;
  void find_absent(std::vector<std::uint8_t> has);
  void launch(std::size_t bucket, double factor);
  void launch_beside(std::size_t bucket, const ReduceOptions& rule, const device::Event& ready);
  Work reduce(const plan::Bucket& bucket, const ReduceOptions& options);
  Work reduce_on_device(const plan::Bucket& bucket, const ReduceOptions& options);
  Work reduce_banks_on_device(const plan::Bucket& bucket, const ReduceOptions& options);
  FlatGradients::Brought bring_small(const plan::Bucket& bucket);
  // The averages are there for what comes next; on a GPU, for what is queued next.
  void await_reductions();
  bool reduces_alone() const;
  static torch::Tensor values_of(const FlatGradients& gradients, const plan::Bucket& bucket);
  std::optional<double> known_divisor();
  void finish();
  void check_complete() const;
  double divisor();
  static void check_weights(const Since& seen);
  // In banks_.
  std::size_t place_of(int bank) const { return static_cast<std::size_t>(bank) + (wide_ ? 1 : 0); }
  void settle_bank();
  std::chrono::nanoseconds since_begin() const { return Clock::now() - pass_.began; }

  DataParallelOptions options_;
  Model model_;
  std::vector<NamedTensor> frozen_;  // parameters that are not trained
  plan::Layout layout_;
  std::optional<plan::Layout> wide_;  // of the banks, where it is another
  plan::Pieces pieces_;
  FirstFault faults_;
  std::vector<plan::Bucket> buckets_;
  FlatParameters parameters_;
  std::shared_ptr<Gather> gather_;    // of a GPU
  std::vector<FlatGradients> banks_;  // the user's gradients first
  std::size_t bank_in_use_ = 0;
  std::optional<Sharded> sharded_;
  bool syncs_buffers_ = true;
  Ledger ledger_;
  BufferSync buffer_sync_;
  Pass pass_;
  std::optional<Captured> capture_;         // under way
  std::optional<device::SideStream> side_;  // on a GPU
  std::optional<device::Event> ready_;      // a bucket's gradients, where they were made
  Since since_;
  std::vector<std::int64_t> pending_;   // the same after a weighted pass in no_sync()
  std::vector<std::int64_t> averaged_;  // versions of the gradients after the last synchronisation
  std::optional<double> divisor_;
  bool checks_each_pass_ = false;
  int suspended_ = 0;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  std::vector<unsigned> watchers_;  // hooks that LibTorch keeps with a parameter, by entry
  std::vector<std::size_t> moved_;  // entries of the pass whose parameter was given other memory
  std::vector<bool> absent_;
  bool retired_ = false;  // the model was wrapped again
  Identity identity_;
  Listing module_parameters_;                  // none for a model that is a list of tensors
  std::vector<torch::Tensor> at_first_;        // what it said then
  std::optional<WeightSample> weight_sample_;  // where there are others to compare with
  Comm comm_;  // last: it ends the operations that still use the memory above
};

// The weight of the backward pass that this thread is in; nothing in a plain loss.backward().
class WeightScope {
 public:
  explicit WeightScope(double weight);
  ~WeightScope();
  WeightScope(const WeightScope&) = delete;
  WeightScope& operator=(const WeightScope&) = delete;

  static std::optional<double> current();
  static std::optional<double> of_process();

 private:
  std::optional<double> outer_;
};

}  // namespace lockstep::replica
