// How a Replicated reduces a bucket: what is brought where, on which stream, and what the Comm is asked for.
#include <utility>

#include "comm/core/tree_sum.h"
#include "torch/device/device.h"
#include "torch/replica/replicated.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {
namespace {

// Gradients of a GPU from here on are reduced where backward made them. That saves a pass over them, and costs calls: a
// send and a receive for every other worker, and a sum, which small ones share.
constexpr std::size_t kLargeBytes = std::size_t{1} << 20;

}  // namespace

void Replicated::launch(std::size_t bucket, double factor) {
  BackwardTimes& times = pass_.times;
  if (pass_.works.empty()) times.first_launch = since_begin();
  if (!ledger_.complete() && !reduces_alone()) ++times.launched_before_end;
  if (!reduces_alone()) ++times.buckets;
  const ReduceOptions rule{.factor = factor, .algorithm = options_.algorithm};
  if (!on_device() || reduces_alone()) {
    pass_.works.push_back(reduce(buckets_[bucket], rule));
    return;
  }
  // Between backward's kernels, not beside them: what goes over all of memory slows those down by more than its own time.
  sharded_ ? banks_[bank_in_use_].bring(buckets_[bucket]) : void(bring_small(buckets_[bucket]));
  ready_->record(device::current_stream(device()));
  launch_beside(bucket, rule, *ready_);
}

// On another stream than backward's, which does not wait.
void Replicated::launch_beside(std::size_t bucket, const ReduceOptions& rule,
                               const device::Event& ready) {
  const device::SideStream::Scope scope(*side_, device::SideStream::After::kGoesOn);
  ready.precede(device::current_stream(device()));
  pass_.works.push_back(reduce(buckets_[bucket], rule));
}

// On a GPU a world of one has nobody to reduce with, and gradients that are as they should be stay where they are.
bool Replicated::reduces_alone() const {
  return on_device() && comm_.size() == 1 && !options_.force_collectives;
}

FlatGradients::Brought Replicated::bring_small(const plan::Bucket& bucket) {
  return banks_[bank_in_use_].bring_small(bucket, plan::plan_lots(layout_, bucket, kLargeBytes));
}

// Each worker's one gradient; large ones where backward made them.
Work Replicated::reduce_on_device(const plan::Bucket& bucket, const ReduceOptions& options) {
  if (reduces_alone()) {
    if (options.factor == 1) return {};
    banks_[bank_in_use_].bring(bucket);
    values_of(banks_.front(), bucket).mul_(options.factor);
    return {};
  }
  FlatGradients::Brought brought = bring_small(bucket);
  for (torch::Tensor& gradient : brought.outside) pass_.outside.push_back(std::move(gradient));
  return comm_.all_reduce(std::move(brought.pieces), options);
}

// With several shards the sums that this worker may compute are computed here, bucket by bucket: all banks but the one
// in use are complete, and of that one this bucket is.
Work Replicated::reduce(const plan::Bucket& bucket, const ReduceOptions& options) {
  if (on_device())
    return sharded_ ? reduce_banks_on_device(bucket, options) : reduce_on_device(bucket, options);
  if (!sharded_) return comm_.all_reduce(banks_.front().bucket(bucket), options);
  std::vector<Buffer> partials;
  std::size_t next = 0;
  for (const plan::Reduction& partial : sharded_->partials) {
    std::vector<const void*> operands;
    for (std::size_t i = 0; i < partial.operands.size(); ++i) {
      const Buffer operand = banks_[place_of(sharded_->held[next++])].bucket(bucket);
      operands.push_back(operand.data);
      if (i == 0) partials.push_back(operand);
    }
    const Buffer& sum = partials.back();
    comm::TreeSum(partial, comm::Fold{sum.dtype}).run(operands, sum.data, sum.count);
  }
  return comm_.reduce(std::move(partials), sharded_->shards, banks_[place_of(0)].bucket(bucket),
                      options);
}

// The same in LibTorch's operators, queued one after the other. Each sum lies where its left operand was.
Work Replicated::reduce_banks_on_device(const plan::Bucket& bucket, const ReduceOptions& options) {
  torch::NoGradGuard no_grad;
  banks_[bank_in_use_].bring(bucket);
  std::vector<Buffer> partials;
  std::size_t next = 0;
  for (const plan::Reduction& partial : sharded_->partials) {
    partials.push_back(banks_[place_of(sharded_->held[next])].bucket(bucket));
    std::vector<torch::Tensor> values;
    for (std::size_t i = 0; i < partial.operands.size(); ++i)
      values.push_back(values_of(banks_[place_of(sharded_->held[next++])], bucket));
    for (const auto& [left, right] : partial.additions) {
      const torch::Tensor sum = values[static_cast<std::size_t>(left)];
      values.push_back(sum.add_(values[static_cast<std::size_t>(right)]));
    }
    if (!reduces_alone()) continue;
    torch::Tensor result = values_of(banks_[place_of(0)], bucket);
    at::mul_out(result, values.front(), torch::scalar_tensor(options.factor, values[0].dtype()));
  }
  if (reduces_alone()) return {};
  return comm_.reduce(std::move(partials), sharded_->shards, banks_[place_of(0)].bucket(bucket),
                      options);
}

// A bank's elements of a bucket; of a GPU.
torch::Tensor Replicated::values_of(const FlatGradients& gradients, const plan::Bucket& bucket) {
  const Buffer where = gradients.bucket(bucket);
  const auto offset =
      static_cast<std::size_t>(static_cast<std::byte*>(where.data) - gradients.memory().data());
  return gradients.memory().as_tensor(scalar_type(where.dtype), offset, where.count);
}

void Replicated::await_reductions() {
  void* const stream = device::current_stream(device());
  for (const Work& work : pass_.works) on_device() ? work.wait_on(stream) : work.wait();
  if (side_) {
    const device::SideStream::Scope joined(*side_);
  }
  pass_.works.clear();
  pass_.outside.clear();
}

}  // namespace lockstep::replica
