// How averaged gradients become new parameters. A class for each kind of memory:
//
//   own      each worker updates everything, in memory of its own (host_update.cpp)
//   shared   the workers of a host share memory: each updates its slice and hands it out
//            (host_update.cpp)
//   device   each worker queues the update of everything on its GPU (device_step.cpp)
//   wrapped  as own or device, but an optimizer of the program's computes the values (in both files)
#pragma once

#include <lockstep/optim.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "control/announcements.h"
#include "flat/device_update.h"
#include "torch/divergence/watch.h"
#include "torch/optim/rules.h"
#include "torch/optim/state_memory.h"
#include "torch/optim/wrapped.h"
#include "torch/replica/gradient_source.h"
#include "torch/replica/replicated.h"

namespace lockstep::optim {

using replica::GradientSource;

// What a program sets beside the options of the rules. The same on every worker.
struct Extras {
  double clip_norm = 0;  // 0: no clipping
  Norm clipped = Norm::kEuclidean;
  double clip_value = 0;  // 0: no limit
  bool keeps_norms = false;
  double ema_decay = 0;  // 0: no average of weights

  std::uint64_t digest() const;
};

// What an update works on. Owned by the optimizer, and not by the Update: if the model goes to
// other workers, a new Update is made, and this stays.
struct Trained {
  std::shared_ptr<replica::Replicated> model;
  Groups groups;
  StateMemory state;
  Extras extras = {};
  // Digests of what else programs have set: announced with this model's own. With local steps, those of the optimizer that
  // shards train with, whose steps nobody announces.
  struct Also {
    std::uint64_t rates = 0;
    std::uint64_t extras = 0;
  };
  Also also = {};

  const torch::Tensor& parameter(std::size_t entry) const {
    return model->parts().parameter(entry);
  }
  const std::vector<bool>& absent() const { return model->banks().absent(); }
  bool leaves_alone(std::size_t entry) const { return !absent().empty() && absent()[entry]; }
};

// Told what an update on the CPU is about to write and has written, so that other workers can finish
// the update if this one dies in it (step/commit_page.h).
class UpdateJournal {
 public:
  using Bytes = std::span<std::byte>;
  virtual ~UpdateJournal() = default;

  // What changes with a piece.
  struct Changing {
    std::size_t elements = 0;
    std::span<const Bytes> memories = {};
    // So many of the memories, the first ones, are kept by the update itself, an element before it
    // changes (flat::Keeping). The others are kept at once.
    std::size_t by_update = 0;
  };
  // Where the update keeps its memories, one after the other, and counts elements.
  struct Room {
    std::byte* values = nullptr;  // null: they need not be kept
    std::atomic<std::uint64_t>* elements = nullptr;
  };
  // A piece is about to change. Called on LibTorch's threads, as wrote().
  virtual Room keep(std::size_t piece, const Changing& changing) = 0;
  // A piece has its new values, in every copy on this host.
  virtual void wrote(std::size_t piece) = 0;

  // For those who finish it. What was kept of a piece: so many elements of each memory; behind them
  // nothing has changed. `bytes` has room for all of them, one memory after the other. No bytes: the
  // piece was not begun.
  struct Kept {
    std::size_t elements = 0;
    std::span<const std::byte> bytes = {};
  };
  virtual bool is_written(std::size_t piece) const = 0;
  virtual Kept kept(std::size_t piece) const = 0;
};

// What decides an update besides gradients and state, as other workers know it.
struct UpdateNumbers {
  double clip_factor = 1;
  double scale = 1;
  std::span<const double> trusts = {};
  bool skipped = false;  // nothing changes
};

// A step is two calls: prepare(), then apply() or skip(). After prepare() every number is known that
// decides what will be written, and nothing has been written. So a Step can write its intent in
// between.
//
// Threads:   one caller at a time.
// Blocking:  prepare(), apply() and skip(), which are collective. On a GPU norm(), norms(),
//            measured_norm(), collect(), check_at_rest(), and prepare() with a scale or for a wrapped
//            optimizer that clips, wait for the GPU.
// Failure:   as Optimizer::step().
// Ownership: owned by the optimizer; borrows the Trained.
class Update {
 public:
  Update(Trained& trained, divergence::PieceRange own)
      : trained_(trained),
        watch_(trained.model->pieces(), own, trained.model->faults(),
               trained.model->comm().rank()) {}
  virtual ~Update() = default;

  // The source is used until apply() or skip() has returned.
  virtual void prepare(const GradientSource& source) = 0;
  virtual void apply(UpdateJournal* journal) = 0;
  // Changes nothing. The journal is told of every piece all the same.
  virtual void skip(UpdateJournal* journal) = 0;
  // After prepare() of a source with a scale: whether a gradient is not finite. All workers get the
  // same answer.
  virtual bool overflowed() const = 0;
  // After another worker was lost between prepare() and the end of apply() or skip(). finish: this
  // worker writes all pieces that nobody has written. complete: all pieces are written, and this
  // worker, whose call was broken off, goes on from there.
  virtual void finish(const UpdateNumbers& /*numbers*/, UpdateJournal& /*journal*/) {}
  virtual void complete(bool /*skipped*/) {}
  // In place of prepare(), before finish(): the update is that of workers that have all ended. All
  // their memory is this worker's now.
  virtual void take_over(const GradientSource& /*source*/) {}

  // Returns whether the update was made.
  bool step(const GradientSource& source) {
    prepare(source);
    overflowed() ? skip(nullptr) : apply(nullptr);
    return !overflowed();
  }

  // The factor of clipping, after prepare(). On a GPU it is always 1 here: only the GPU knows it.
  virtual double clip_factor() const { return 1; }

  // By entry, for layer-wise rules: what scales the change of a parameter, after prepare(). Empty
  // for other rules, and on a GPU: only the GPU knows them.
  virtual std::span<const double> trusts() const { return {}; }

  // The norm of the last step's gradients before clipping; 0 if no update needed it.
  virtual double norm() = 0;
  // By entry, of the last step; empty if they are not kept, or if that step was skipped.
  virtual std::span<const double> norms() { return {}; }
  // After apply() of a source that is measured, until the next step: the norm of its gradients before
  // clipping, divided by their scale.
  virtual double measured_norm() const { return 0; }
  // The program sets these. BadInput if this update cannot do them. May take memory for them now,
  // so that no step has to.
  virtual void accept(const Extras&) {}
  // On a GPU: the update kernel of the next step also copies this to pinned memory of the host.
  virtual void take_along(const flat::Note&) {}

  // Whether there are several whole copies, each updated by one worker or by those of one host,
  // and parities of them that can be compared.
  virtual bool has_copies() const = 0;
  // Whether it wants the averages in param.grad, and no other source.
  virtual bool reads_grad() const { return false; }

  // Whether there is state that Lockstep cannot name. pack() gives it as bytes.
  virtual bool packs() const { return false; }
  virtual torch::Tensor pack() const { return {}; }
  // Mismatch if the bytes are those of something else.
  virtual void unpack(const torch::Tensor&) {}

  // For the divergence check. On a GPU the parities of the last update come to the host in
  // collect().
  divergence::UpdateWatch& watch() { return watch_; }
  virtual void collect() {}
  virtual void forget() { forget_parities(); }
  // Compares parameters and state with the parities of the last update, before they go to a file.
  void check_at_rest();

  // How long the last step waited for other workers.
  std::chrono::nanoseconds waited() const { return waited_; }

 protected:
  virtual void forget_parities() { watch_.forget(); }
  // A step begins: forgets the parities if parameters were loaded since the last one.
  void heed_loads();
  flat::Parity parity_at_rest(const plan::Stretch& piece) const;
  // Tells LibTorch that parameters were written. A graph that saved one then refuses to run
  // backward, as after a step of torch::optim.
  void bump_versions();

  Trained& trained_;
  divergence::UpdateWatch watch_;
  std::chrono::nanoseconds waited_{0};

 private:
  std::uint64_t loads_ = 0;  // of the model, when the last step began
};

// "the norm of the gradients is inf at step 3: …"
std::string diverged(double norm, std::int64_t step);

// BadInput if the losses are scaled and the update cannot be made with a scale.
void check_scaled(const Trained& trained);
// BadInput if the noise scale is measured and the update cannot say the norm of its gradients.
void check_measured(const Trained& trained);
// BadInput if a wrapped optimizer cannot do these.
void check_wrapped(const Extras& extras);

// What workers announce of an update. If they announce different steps, replicas would differ, and
// all fail. A worker that cannot make the update says so, and all fail, too.
struct Said {
  std::shared_ptr<const control::Announcement> all;
  std::exception_ptr cannot;  // why this worker cannot; null if it can
};

// Announces the step. It also puts the gradients where the update reads them.
Said say_step(const Trained& trained, const GradientSource& source);

// Waits for the other workers, and returns how long. Mismatch, the same on every worker, if they
// announced different steps, or if their programs wrote different values to parameters.
std::chrono::nanoseconds hear_step(const Trained& trained, const Said& said);

// Whether gradients can be sampled at no cost: only on the CPU.
bool can_sample(const replica::Replicated& model);

// The class for the device of the model, and for how workers reach each other's memory.
std::unique_ptr<Update> make_update(Trained& trained);
// The class for an optimizer of the program's. Collective.
std::unique_ptr<Update> make_wrapped_update(Trained& trained,
                                            const std::shared_ptr<WrappedOptimizer>& optimizer);

// On the CPU. (host_update.cpp)
std::unique_ptr<Update> make_own_update(Trained& trained);
std::unique_ptr<Update> make_shared_update(Trained& trained);
std::unique_ptr<Update> make_wrapped_on_host(Trained& trained,
                                             std::shared_ptr<WrappedOptimizer> optimizer);

// On a GPU. norm() and collect() wait until the GPU has done the last step; prepare() waits for a
// step some steps before. These throw BadInput if a norm that decides an update was not finite; that
// step has changed nothing. Unavailable in a build without CUDA. (device_step.cpp)
std::unique_ptr<Update> make_device_step(Trained& trained);
std::unique_ptr<Update> make_wrapped_on_device(Trained& trained,
                                               const std::shared_ptr<WrappedOptimizer>& optimizer);

}  // namespace lockstep::optim
