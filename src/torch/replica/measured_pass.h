// The norm of one shard's gradient, taken where its backward pass hands it on.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "torch/replica/attachment.h"
#include "torch/replica/parts.h"

namespace lockstep::replica {

// Listens to the passes of shards, measures each gradient before it is added to a bank, and hands it
// on to the listener that has been there before. What it finds does not depend on banks, buckets or
// threads.
//
// Threads:   as Attachment.
// Blocking:  as the other listener.
// Failure:   as the other listener.
// Ownership: borrows all three, and gives the passes back when it goes.
class MeasuredPass : public PassListener {
 public:
  MeasuredPass(const Parts& parts, Attachment& attachment, PassListener& next);
  ~MeasuredPass() override;
  MeasuredPass(const MeasuredPass&) = delete;
  MeasuredPass& operator=(const MeasuredPass&) = delete;

  // Before a pass.
  void start();
  // After it: the sum of squares over all parameters. On a GPU it waits for the pass.
  virtual double squares() const = 0;

  void before(std::size_t entry) override;
  void ready(std::size_t entry, const torch::Tensor& incoming) override;
  void end() override;
  void expect(std::optional<double> weight) override { next_.expect(weight); }
  bool idle() const override { return next_.idle(); }

 protected:
  virtual void forget() = 0;
  // `gradient` is dense, and lies in memory as its parameter does.
  virtual void measure(std::size_t entry, const torch::Tensor& gradient) = 0;

  const Parts& parts_;

 private:
  void measure_any(std::size_t entry, torch::Tensor gradient);

  Attachment& attachment_;
  PassListener& next_;
  std::vector<std::size_t> unheard_;  // moved parameters; no hook may tell of their gradients
};

// For the device of the model. (device_choice.cpp)
std::unique_ptr<MeasuredPass> make_measured_pass(const Parts& parts, Attachment& attachment,
                                                 PassListener& next);

// On a CPU: one number for each block, then a tree over blocks, as norms of an update are taken
// (docs/decisions/0020-norms-by-block.md).
std::unique_ptr<MeasuredPass> make_host_measured_pass(const Parts& parts, Attachment& attachment,
                                                      PassListener& next);

// On a GPU: LibTorch's sum for each parameter, then a tree over parameters. (device_measured_pass.cpp)
std::unique_ptr<MeasuredPass> make_device_measured_pass(const Parts& parts, Attachment& attachment,
                                                        PassListener& next);

}  // namespace lockstep::replica
