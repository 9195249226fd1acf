// A drop-in loop whose workers run out of batches at different times: what PyTorch calls join.
//
//   lockstep::UnevenInputs inputs(batches, world);     // any range; as many batches as this worker has
//   for (auto& batch : inputs) {
//     optimizer.zero_grad();
//     torch::nll_loss(model->forward(batch.data), batch.target).backward();
//     optimizer.step();
//   }
//
// The loop ends on all workers together, when none has a batch left. Until then a worker without one
// is idle: it runs the body with its last batch once more, so that it takes part in everything that
// the others wait for. Nothing of that batch counts.
#pragma once

#include <lockstep/world.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace lockstep {

struct UnevenOptions {
  // By what loss.backward() divides the sum of all gradients. backward(loss, samples) divides by the
  // number of samples instead, which is better where batches differ.
  enum class DivideBy : std::uint8_t {
    kWorkers,  // all workers, as PyTorch by default: what an idle worker would add is zero
    kPresent,  // those that have a batch of their own
  };
  DivideBy divide_by = DivideBy::kWorkers;

  // Once a worker has no batch left and another has one, all workers get BadInput with their ranks.
  // They can go on. It costs one wait for all workers at every batch.
  bool throw_on_early_termination = false;
};

// The loop that is under way, as long as this lives. UnevenInputs makes it.
//
// Threads, Blocking, Failure: as UnevenInputs.
// Ownership: the world must outlive it.
class UnevenLoop {
 public:
  UnevenLoop(World& world, const UnevenOptions& options);
  ~UnevenLoop();
  UnevenLoop(const UnevenLoop&) = delete;
  UnevenLoop& operator=(const UnevenLoop&) = delete;

  // Begins the next run of the body. False: all workers have ended. Collective.
  bool next(bool has_batch, bool can_repeat);

 private:
  std::shared_ptr<control::Announcements> announcements_;
  UnevenOptions options_;
};

// The batches of this worker, and its last one again while it is idle. The same code runs on every
// worker in every run of the body, so it may hold several models and optimizers, no_sync(),
// SyncBatchNorm and collectives of the program. While a worker is idle:
//
//   - its gradients are zero, and it has no samples in backward(loss, samples)
//   - its samples are not in the statistics of a SyncBatchNorm
//   - its buffers are not in a mean, and are not those that the others get: in place of the leader,
//     that is the first worker that has a batch
//   - what it adds to Metrics, and to mean(), has no weight
//   - other collectives get what the program gives them: ask idle()
//
// Threads:   one caller at a time, for everything that belongs to a world.
// Blocking:  the loop is collective, and so is leaving it early, by `break` or `return`: all workers
//            do so in the same run of the body. The first batch waits for all workers. Later ones wait for nobody, except on an
//            idle worker.
// Failure:   BadInput if a worker has no batch at all, and no example; for a loop over job.batches(),
//            or another of these, inside the body. Mismatch if other workers are not in such a loop, have
//            other options, or leave it while this one goes on. A worker that leaves it by an
//            exception has failed: the others get PeerLost when it ends. PeerLost, Timeout.
// Ownership: keeps the range if it is a temporary, else borrows it. Keeps a copy of the last batch;
//            a copy of a tensor shares its memory. The world must outlive it.
template <typename Range>
class UnevenInputs {
  using Source = decltype(std::begin(std::declval<Range&>()));
  using End = decltype(std::end(std::declval<Range&>()));

 public:
  using Batch = std::remove_cvref_t<decltype(*std::declval<Source&>())>;

  // `example` is run in place of batches on a worker that has none from the beginning.
  UnevenInputs(Range&& batches, World& world, const UnevenOptions& options = {},
               std::optional<Batch> example = {})
      : batches_(std::forward<Range>(batches)),
        world_(world),
        options_(options),
        last_(std::move(example)) {}

  struct Sentinel {};
  class Iterator {
   public:
    explicit Iterator(UnevenInputs& inputs)
        : inputs_(inputs),
          at_(std::begin(inputs.batches_)),
          end_(std::end(inputs.batches_)),
          loop_(inputs.world_, inputs.options_) {
      take();
    }
    ~Iterator() { inputs_.idle_ = false; }
    Iterator(const Iterator&) = delete;
    Iterator& operator=(const Iterator&) = delete;

    Batch& operator*() const { return *inputs_.last_; }
    Iterator& operator++() {
      if (!inputs_.idle_) ++at_;
      take();
      return *this;
    }
    bool operator!=(Sentinel) const { return more_; }

   private:
    void take() {
      const bool has = at_ != end_;
      if (has) inputs_.last_.emplace(*at_);
      more_ = loop_.next(has, inputs_.last_.has_value());
      inputs_.idle_ = !has;
    }

    UnevenInputs& inputs_;
    Source at_;
    End end_;
    UnevenLoop loop_;
    bool more_ = false;
  };
  // Once at a time; each begins the range again.
  Iterator begin() { return Iterator(*this); }
  Sentinel end() const { return {}; }

  // Whether the batch is this worker's last once more, and does not count.
  bool idle() const { return idle_; }

 private:
  Range batches_;
  World& world_;
  UnevenOptions options_;
  std::optional<Batch> last_;
  bool idle_ = false;
};

template <typename Range>
UnevenInputs(Range&&, World&, UnevenOptions = {}) -> UnevenInputs<Range>;
template <typename Range, typename Example>
UnevenInputs(Range&&, World&, UnevenOptions, Example&&) -> UnevenInputs<Range>;

}  // namespace lockstep
