// A backward pass on a GPU that is captured as a graph, and replayed as often as one likes (device::Graph).
#pragma once

#include <vector>

#include "torch/device/device.h"
#include "torch/replica/pass.h"

namespace lockstep::replica {

// What backward made, by entry, and a point for each bucket at which its gradients are there, if anybody waits for them.
struct ShardPass::Captured {
  std::vector<torch::Tensor> gradients;  // undefined where there is none
  std::vector<bool> own;                 // whether its memory is (device_gradients.h)
  std::vector<device::Event> ready;
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
