// The norm of one shard's gradient, taken where its backward pass hands it on.
#pragma once

#include <cstddef>
#include <vector>

#include "torch/replica/attachment.h"
#include "torch/replica/parts.h"

namespace lockstep::replica {

// Listens to the passes of shards, measures each gradient before it is added to a bank, and hands it
// on to the listener that has been there before. One number for each block, then a tree over blocks,
// as norms of an update are taken (docs/decisions/0020-norms-by-block.md): so it does not depend on
// banks, buckets or threads.
//
// Threads:   as Attachment.
// Blocking:  as the other listener.
// Failure:   as the other listener.
// Ownership: borrows all three, and gives the passes back when it goes.
class MeasuredPass : public PassListener {
 public:
  // Only on a CPU.
  MeasuredPass(const Parts& parts, Attachment& attachment, PassListener& next);
  ~MeasuredPass() override;
  MeasuredPass(const MeasuredPass&) = delete;
  MeasuredPass& operator=(const MeasuredPass&) = delete;

  // Before a pass.
  void start();
  // After it: the sum of squares over all parameters.
  double squares() const;

  void before(std::size_t entry) override;
  void ready(std::size_t entry, const torch::Tensor& incoming) override;
  void end() override;
  void expect(std::optional<double> weight) override { next_.expect(weight); }
  bool idle() const override { return next_.idle(); }

 private:
  void measure(std::size_t entry, const torch::Tensor& gradient);

  const Parts& parts_;
  Attachment& attachment_;
  PassListener& next_;
  std::vector<double> blocks_;        // of the layout: sums of squares
  std::vector<std::size_t> unheard_;  // moved parameters; no hook may tell of their gradients
};

}  // namespace lockstep::replica
