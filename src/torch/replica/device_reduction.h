// Reduction on GPUs. The classes are owned by Parts, and no call waits for the GPU. launch() of one with two stages waits for
// workers that have not launched the bucket before.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "torch/device/device.h"
#include "torch/replica/device_gradients.h"
#include "torch/replica/reduction.h"

namespace lockstep::replica {

// With other workers: on a stream of its own, so that backward goes on meanwhile.
class DeviceReduction : public Reduction {
 public:
  DeviceReduction(Comm& comm, Banks& banks, const plan::Layout& layout, Device device);
  // What is still queued after a failure uses the banks.
  ~DeviceReduction() override { const device::SideStream::Scope joined(side_); }

  void launch(const plan::Bucket& bucket, const Sharded* sharded,
              const ReduceOptions& rule) override;
  // The same for gradients that are complete when a stream reaches `ready`, such as a point inside
  // a graph.
  void launch_after(const device::Event& ready, const plan::Bucket& bucket, const Sharded* sharded,
                    const ReduceOptions& rule);
  void wait(Met met) override;

 protected:
  // Moves the gradients of a bucket to where they are reduced.
  virtual void bring(const plan::Bucket& bucket, const Sharded* sharded);
  // Queues the reduction on the current stream. The gradients may still be where a graph has written them.
  virtual Work queue(const plan::Bucket& bucket, const Sharded* sharded, const ReduceOptions& rule);

  Comm& comm_;
  Banks& banks_;
  Device device_;
  device::SideStream side_;

 private:
  Work reduce_gradients(const plan::Bucket& bucket, const ReduceOptions& rule);
  Work reduce_banks(const plan::Bucket& bucket, const Sharded& sharded, const ReduceOptions& rule);
  DeviceGradients::Brought bring_small(const plan::Bucket& bucket);

  const plan::Layout& layout_;
  device::Event ready_;                 // on backward's stream: the gradients of a bucket are there
  std::vector<torch::Tensor> outside_;  // gradients that are reduced where they are
};

// A bucket that is reduced by two collectives, with arithmetic around them. All of it is queued on the current stream.
class StagedBucket {
 public:
  virtual ~StagedBucket() = default;
  virtual Work begin() = 0;   // up to the first collective
  virtual Work go_on() = 0;   // behind the first, up to the second
  virtual void finish() = 0;  // behind the second
};

// The second collective of a bucket is queued behind the first of the next: before, the host would have to wait for workers that
// have not called the first yet.
class StagedDeviceReduction : public DeviceReduction {
 public:
  using DeviceReduction::DeviceReduction;
  void wait(Met met) override;

 protected:
  static constexpr std::size_t kBuckets = 2;  // that are on their way at a time

  virtual std::unique_ptr<StagedBucket> stage(const plan::Bucket& bucket, const Sharded* sharded,
                                              double factor) = 0;
  virtual void all_finished() {}  // of a pass

  void bring(const plan::Bucket& bucket, const Sharded* sharded) override;
  Work queue(const plan::Bucket& bucket, const Sharded* sharded,
             const ReduceOptions& rule) override;

 private:
  struct Flight {
    std::unique_ptr<StagedBucket> bucket;
    Work first;
    Work second;
  };
  void go_on(Flight& flight);
  void finish_first();

  std::deque<Flight> flights_;  // all but the last have gone on
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
