#include <lockstep/data_parallel.h>
#include <lockstep/errors.h>

#include "torch/replica/attachment.h"
#include "torch/replica/replicated.h"

namespace lockstep {
namespace {

// What one sample weighs: a power of two, which costs no bit, and small, so that the gradients of large
// batches do not overflow in half precision.
constexpr double kSampleWeight = 1.0 / 1024;

void weighted_backward(const torch::Tensor& loss, std::int64_t samples) {
  if (samples < 1) throw BadInput("backward() wants at least one sample; without, synchronize()");
  if (loss.numel() != 1) throw BadInput("backward() wants a loss of one element: a mean");
  const double weight = static_cast<double>(samples) * kSampleWeight;
  const replica::Expectation expected(loss, weight);
  loss.backward(torch::full_like(loss, weight));
}

}  // namespace

NoSync::NoSync(std::shared_ptr<replica::Replicated> replica) : replica_(std::move(replica)) {
  if (replica_) replica_->drop_in().suspend_sync();
}
NoSync::~NoSync() {
  if (replica_) replica_->drop_in().resume_sync();
}

Replica::Replica(World& world, std::vector<NamedTensor> parameters,
                 std::vector<NamedTensor> buffers, const DataParallelOptions& options)
    : state_(replica::Replicated::make(
          {world.open_channel(), world.announcements(), world.announcements()->next_number()},
          std::move(parameters), std::move(buffers), options)) {}

void Replica::backward(const torch::Tensor& loss, std::int64_t samples) {
  weighted_backward(loss, samples);
}
void Replica::set_module(std::function<std::vector<torch::Tensor>()> parameters,
                         std::weak_ptr<torch::nn::Module> module) {
  state_->attachment().watch_module(std::move(parameters), std::move(module));
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
  return state_->drop_in().times();
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

DataParallelOptions replica::named_after(const torch::nn::Module& module,
                                         DataParallelOptions options) {
  if (options.name.empty()) options.name = module.name();
  return options;
}

void backward(const torch::Tensor& loss, std::int64_t samples) {
  weighted_backward(loss, samples);
}

double mean(World& world, double value, double weight) {
  const CallName call(world.comm(), "mean()");
  double sums[2] = {weight == 0 ? 0 : value * weight, weight};
  world.comm().all_reduce({sums, 2, DType::kFloat64}).wait();
  if (sums[1] == 0) throw BadInput("mean over workers whose weights are all zero");
  return sums[0] / sums[1];
}

}  // namespace lockstep
