#include <lockstep/data_parallel.h>
#include <lockstep/errors.h>

#include "torch/replica/replicated.h"

namespace lockstep {
namespace {

// The replicas of this thread, for the free backward().
thread_local std::vector<std::weak_ptr<replica::Replicated>> replicas;

void weighted_backward(replica::Replicated& lead, const torch::Tensor& loss, std::int64_t samples) {
  if (samples < 0) throw BadInput("backward() with a negative number of samples");
  if (loss.numel() != 1) throw BadInput("backward() wants a loss of one element: a mean");
  const auto reference = static_cast<double>(lead.reference_samples(samples));
  const double weight = static_cast<double>(samples) / reference;
  const replica::WeightScope scope(weight);
  loss.backward(torch::full_like(loss, weight));
}

}  // namespace

NoSync::NoSync(std::shared_ptr<replica::Replicated> replica) : replica_(std::move(replica)) {
  replica_->suspend_sync();
}
NoSync::~NoSync() {
  replica_->resume_sync();
}

Replica::Replica(World& world, std::vector<NamedTensor> parameters,
                 std::vector<NamedTensor> buffers, const DataParallelOptions& options)
    : state_(replica::Replicated::make(world.open_channel(), std::move(parameters),
                                       std::move(buffers), options)) {
  std::erase_if(replicas, [](const auto& known) { return known.expired(); });
  replicas.push_back(state_);
}

void Replica::backward(const torch::Tensor& loss, std::int64_t samples) {
  weighted_backward(*state_, loss, samples);
}
void Replica::synchronize() {
  state_->synchronize();
}
void Replica::zero_grad() {
  state_->zero_grad();
}
bool Replica::identical() {
  return state_->identical();
}
const std::vector<NamedTensor>& Replica::parameters() const {
  return state_->model().parameters;
}
const std::vector<NamedTensor>& Replica::buffers() const {
  return state_->model().buffers;
}
std::size_t Replica::parameter_count() const {
  std::size_t count = 0;
  for (const auto& named : parameters()) count += static_cast<std::size_t>(named.tensor.numel());
  return count;
}
BackwardTimes Replica::last_backward() const {
  return state_->times();
}

std::vector<NamedTensor> replica::parameters_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : module.named_parameters()) tensors.push_back({item.key(), item.value()});
  return tensors;
}

std::vector<NamedTensor> replica::buffers_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : module.named_buffers()) tensors.push_back({item.key(), item.value()});
  return tensors;
}

void backward(const torch::Tensor& loss, std::int64_t samples) {
  for (const auto& known : replicas) {
    if (const auto lead = known.lock()) return weighted_backward(*lead, loss, samples);
  }
  throw BadInput("backward(loss, samples) without a model: call data_parallel() first");
}

double mean(World& world, double value, double weight) {
  double sums[2] = {value * weight, weight};
  world.comm().all_reduce({sums, 2, DType::kFloat64}).wait();
  if (sums[1] == 0) throw BadInput("mean over workers whose weights are all zero");
  return sums[0] / sums[1];
}

}  // namespace lockstep
