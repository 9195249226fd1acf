// Reduction on GPUs. Both classes are owned by Parts, and no call waits for the GPU.
#pragma once

#include "torch/device/device.h"
#include "torch/replica/device_gradients.h"
#include "torch/replica/reduction.h"

namespace lockstep::replica {

// With other workers: on a stream of its own, so that backward goes on meanwhile.
class DeviceReduction : public Reduction {
 public:
  DeviceReduction(Comm& comm, Banks& banks, const plan::Layout& layout, Device device);

  void launch(const plan::Bucket& bucket, const Sharded* sharded,
              const ReduceOptions& rule) override;
  // The same for gradients that are complete when a stream reaches `ready`, such as a point inside
  // a graph.
  void launch_after(const device::Event& ready, const plan::Bucket& bucket, const Sharded* sharded,
                    const ReduceOptions& rule);
  void wait(Met met) override;

 private:
  Work reduce_gradients(const plan::Bucket& bucket, const ReduceOptions& rule);
  Work reduce_banks(const plan::Bucket& bucket, const Sharded& sharded, const ReduceOptions& rule);
  DeviceGradients::Brought bring_small(const plan::Bucket& bucket);

  Comm& comm_;
  Banks& banks_;
  const plan::Layout& layout_;
  Device device_;
  device::SideStream side_;
  device::Event ready_;                 // on backward's stream: the gradients of a bucket are there
  std::vector<torch::Tensor> outside_;  // gradients that are reduced where they are
};

// For a world of one: nothing travels. Gradients that need no factor stay where they are.
class LoneDeviceReduction : public Reduction {
 public:
  explicit LoneDeviceReduction(Banks& banks) : banks_(banks) {}

  bool travels() const override { return false; }
  void launch(const plan::Bucket& bucket, const Sharded* sharded,
              const ReduceOptions& rule) override;

 private:
  void sum_banks(const plan::Bucket& bucket, const Sharded& sharded, double factor);

  Banks& banks_;
};

}  // namespace lockstep::replica
