#include <fmt/format.h>
#include <lockstep/data_parallel.h>
#include <lockstep/errors.h>

#include "control/turns.h"
#include "torch/replica/attachment.h"
#include "torch/replica/replicated.h"

namespace lockstep {
namespace {

// The weight of one sample: a power of two, so that multiplying by it rounds nothing. It is small,
// so that the gradients of large batches do not overflow in half precision.
constexpr double kSampleWeight = 1.0 / 1024;

std::vector<NamedTensor> listed(const torch::OrderedDict<std::string, torch::Tensor>& items) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : items) tensors.push_back({item.key(), item.value()});
  return tensors;
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
    : state_(replica::Replicated::make(world, std::move(parameters), std::move(buffers), options)) {
}

void Replica::backward(const torch::Tensor& loss, std::int64_t samples) {
  lockstep::backward(loss, samples);
}
void Replica::set_module(std::function<std::vector<torch::Tensor>()> parameters,
                         std::weak_ptr<torch::nn::Module> module) {
  state_->attachment().remember_module(std::move(parameters), std::move(module));
}
void Replica::synchronize() {
  state_->synchronize();
}
void Replica::sync_buffers() {
  state_->sync_buffers();
}
void Replica::before_forward() {
  state_->before_forward();
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
  return listed(module.named_parameters());
}

std::vector<NamedTensor> replica::buffers_of(const torch::nn::Module& module) {
  return listed(module.named_buffers());
}

DataParallelOptions replica::named_after(const torch::nn::Module& module,
                                         DataParallelOptions options) {
  if (options.name.empty()) options.name = module.name();
  return options;
}

void backward(const torch::Tensor& loss, std::int64_t samples) {
  if (samples < 0)
    throw BadInput(fmt::format("backward() of {} samples: 0 is for an empty batch", samples));
  if (loss.numel() != 1) throw BadInput("backward() needs a loss of one element, such as a mean");
  const double weight = static_cast<double>(samples) * kSampleWeight;
  const replica::Expectation expected(loss, weight);
  loss.backward(torch::full_like(loss, weight));
}

double mean(World& world, double value, double weight) {
  const CallName call(world.comm(), "mean()");
  if (world.announcements()->turns().idle()) weight = 0;
  double sums[2] = {weight == 0 ? 0 : value * weight, weight};
  world.comm().all_reduce({sums, 2, DType::kFloat64}).wait();
  if (sums[1] == 0) throw BadInput("mean over workers whose weights are all zero");
  return sums[0] / sums[1];
}

}  // namespace lockstep
