// Reduction on a GPU, on a stream beside backward's.
#pragma once

#include "torch/device/device.h"
#include "torch/replica/device_gradients.h"
#include "torch/replica/reduction.h"

namespace lockstep::replica {

class DeviceReduction : public Reduction {
 public:
  DeviceReduction(Comm& comm, Banks& banks, const plan::Layout& layout, Device device);

  void launch(const plan::Bucket& bucket, const Sharded* sharded,
              const ReduceOptions& rule) override;
  // The same for gradients that are there when the stream has come to `ready`, such as a point inside a graph.
  void launch_after(const device::Event& ready, const plan::Bucket& bucket, const Sharded* sharded,
                    const ReduceOptions& rule);
  void wait() override;

 private:
  Work reduce_gradients(const plan::Bucket& bucket, const ReduceOptions& rule);
  Work reduce_banks(const plan::Bucket& bucket, const Sharded& sharded, const ReduceOptions& rule);
  DeviceGradients::Brought bring_small(const plan::Bucket& bucket);

  Comm& comm_;
  Banks& banks_;
  const plan::Layout& layout_;
  Device device_;
  device::SideStream side_;
  device::Event ready_;                 // a bucket's gradients, where they were made
  std::vector<torch::Tensor> outside_;  // gradients that are reduced where backward made them
};

// A world of one has nobody to reduce with, and gradients that are as they should be stay where they are.
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
