#include "torch/replica/device_reduction.h"

#include <utility>

namespace lockstep::replica {
namespace {

// Gradients of at least this size are reduced where backward made them. That saves copying them. It
// costs a send and a receive for every other worker, and a sum; small gradients share these.
constexpr std::size_t kLargeBytes = std::size_t{1} << 20;

DeviceGradients& as_device(FlatGradients& gradients) {
  return static_cast<DeviceGradients&>(gradients);
}

// Queues the sums over the banks that a worker holds, for one bucket, with LibTorch's operators.
// Each sum is in the memory of its first bank.
std::vector<torch::Tensor> sums_of(const Sharded& sharded, const plan::Bucket& bucket,
                                   Banks& banks) {
  std::vector<torch::Tensor> sums;
  std::size_t next = 0;
  for (const plan::Reduction& partial : sharded.partials) {
    std::vector<torch::Tensor> values;
    for (std::size_t i = 0; i < partial.operands.size(); ++i)
      values.push_back(as_device(banks.at(sharded.held[next++])).values(bucket));
    for (const auto& [left, right] : partial.additions) {
      const torch::Tensor sum = values[static_cast<std::size_t>(left)];
      values.push_back(sum.add_(values[static_cast<std::size_t>(right)]));
    }
    sums.push_back(values.front());
  }
  return sums;
}

}  // namespace

DeviceReduction::DeviceReduction(Comm& comm, Banks& banks, const plan::Layout& layout,
                                 Device device)
    : comm_(comm), banks_(banks), device_(device), side_(device), layout_(layout) {}

DeviceGradients::Brought DeviceReduction::bring_small(const plan::Bucket& bucket) {
  return as_device(banks_.in_use())
      .bring_small(bucket, plan::plan_lots(layout_, bucket, kLargeBytes));
}

// Gradients are copied on backward's stream, between its kernels. Copied beside them, they would
// slow backward down by more than the copy takes.
void DeviceReduction::launch(const plan::Bucket& bucket, const Sharded* sharded,
                             const ReduceOptions& rule) {
  bring(bucket, sharded);
  ready_.record(device::current_stream(device_));
  launch_after(ready_, bucket, sharded, rule);
}

// Queues the reduction on the other stream. Backward's stream does not wait for it.
void DeviceReduction::launch_after(const device::Event& ready, const plan::Bucket& bucket,
                                   const Sharded* sharded, const ReduceOptions& rule) {
  const device::SideStream::Scope scope(side_, device::SideStream::After::kGoesOn);
  ready.precede(device::current_stream(device_));
  works_.push_back(queue(bucket, sharded, rule));
}

void DeviceReduction::bring(const plan::Bucket& bucket, const Sharded* sharded) {
  if (sharded != nullptr)
    as_device(banks_.in_use()).bring(bucket);
  else
    bring_small(bucket);
}

Work DeviceReduction::queue(const plan::Bucket& bucket, const Sharded* sharded,
                            const ReduceOptions& rule) {
  return sharded != nullptr ? reduce_banks(bucket, *sharded, rule) : reduce_gradients(bucket, rule);
}

// bring_small() again: launch() has moved the small gradients already, so here it only finds
// buffers. After a replay of a graph it moves them.
Work DeviceReduction::reduce_gradients(const plan::Bucket& bucket, const ReduceOptions& rule) {
  DeviceGradients::Brought brought = bring_small(bucket);
  for (torch::Tensor& gradient : brought.outside) outside_.push_back(std::move(gradient));
  return comm_.all_reduce(std::move(brought.buffers), rule);
}

Work DeviceReduction::reduce_banks(const plan::Bucket& bucket, const Sharded& sharded,
                                   const ReduceOptions& rule) {
  torch::NoGradGuard no_grad;
  as_device(banks_.in_use()).bring(bucket);
  std::vector<Buffer> partials;
  std::size_t next = 0;
  for (const plan::Reduction& partial : sharded.partials) {
    partials.push_back(banks_.at(sharded.held[next]).bucket(bucket));
    next += partial.operands.size();
  }
  sums_of(sharded, bucket, banks_);
  return comm_.reduce(std::move(partials), sharded.shards, banks_.at(0).bucket(bucket), rule);
}

void DeviceReduction::wait(Met) {
  void* const stream = device::current_stream(device_);
  for (const Work& work : works_) work.wait_on(stream);
  { const device::SideStream::Scope joined(side_); }  // its end lets the current stream wait
  works_.clear();
  outside_.clear();
}

void StagedDeviceReduction::bring(const plan::Bucket& bucket, const Sharded*) {
  as_device(banks_.in_use()).bring(bucket);
}

Work StagedDeviceReduction::queue(const plan::Bucket& bucket, const Sharded* sharded,
                                  const ReduceOptions& rule) {
  torch::NoGradGuard no_grad;
  bring(bucket, sharded);
  if (flights_.size() == kBuckets) finish_first();
  Flight& flight = flights_.emplace_back(Flight{stage(bucket, sharded, rule.factor), {}, {}});
  flight.first = flight.bucket->begin();
  if (flights_.size() > 1) go_on(flights_[flights_.size() - 2]);
  return flight.first;
}

void StagedDeviceReduction::go_on(Flight& flight) {
  flight.first.wait_on(device::current_stream(device_));
  flight.second = flight.bucket->go_on();
}

void StagedDeviceReduction::finish_first() {
  flights_.front().second.wait_on(device::current_stream(device_));
  flights_.front().bucket->finish();
  flights_.pop_front();
}

void StagedDeviceReduction::wait(Met met) {
  if (!flights_.empty()) {
    torch::NoGradGuard no_grad;
    const device::SideStream::Scope scope(side_, device::SideStream::After::kGoesOn);
    go_on(flights_.back());
    while (!flights_.empty()) finish_first();
    all_finished();
  }
  DeviceReduction::wait(met);
}

void LoneDeviceReduction::launch(const plan::Bucket& bucket, const Sharded* sharded,
                                 const ReduceOptions& rule) {
  works_.emplace_back();
  if (sharded != nullptr) return sum_banks(bucket, *sharded, rule.factor);
  if (rule.factor == 1) return;
  as_device(banks_.in_use()).bring(bucket);
  as_device(banks_.front()).values(bucket).mul_(rule.factor);
}

void LoneDeviceReduction::sum_banks(const plan::Bucket& bucket, const Sharded& sharded,
                                    double factor) {
  torch::NoGradGuard no_grad;
  as_device(banks_.in_use()).bring(bucket);
  torch::Tensor result = as_device(banks_.at(0)).values(bucket);
  for (const torch::Tensor& sum : sums_of(sharded, bucket, banks_))
    at::mul_out(result, sum, torch::scalar_tensor(factor, sum.dtype()));
}

}  // namespace lockstep::replica
