// LibTorch's layers call the operator aten::batch_norm. It is overridden here, on the first
// conversion, for all layers of the process; layers that nobody converted get LibTorch's own. A
// layer is known by its weight, or by its running mean if it has no weight: these tensors stay the
// same objects when a module moves to a device or into data_parallel()'s memory.
#include <ATen/ops/batch_norm_compositeimplicitautograd_dispatch.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/sync_batchnorm.h>
#include <torch/library.h>

#include <functional>
#include <ios>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "control/turns.h"
#include "torch/replica/agreement.h"
#include "torch/replica/collectives.h"
#include "torch/replica/synced_norms.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// LibTorch's optional tensor. Its type differs between versions.
template <typename Function>
struct SecondArgument;
template <typename Result, typename First, typename Second, typename... Rest>
struct SecondArgument<Result(First, Second, Rest...)> {
  using Type = std::remove_cvref_t<Second>;
};
using OptionalTensor = SecondArgument<decltype(at::_ops::batch_norm::call)>::Type;

// A converted layer.
struct SyncedLayer : torch::CustomClassHolder {
  // Its messages go where workers also say that they come to backward() or step(): so a worker that
  // leaves out a layer gets a Mismatch.
  std::shared_ptr<control::Announcements> announcements;
  std::weak_ptr<torch::nn::Module> module;
  std::string name;         // "SyncBatchNorm 3": short enough for a CallName
  std::string path;         // in the module that was converted
  std::int64_t group = 0;   // passes that share statistics; 0: all
  std::int64_t passes = 0;  // in the drop-in loop

  // Whether this worker's samples do not count (control/turns.h).
  bool idle() const { return announcements->turns().idle(); }
};
using LayerPtr = c10::intrusive_ptr<SyncedLayer>;

// All converted layers of the process, by the tensor that they are known by.
class Layers {
 public:
  void put(const at::Tensor& key, LayerPtr layer) {
    const base::Lock lock(mutex_);
    std::erase_if(layers_, [](const auto& one) { return one.second->module.expired(); });
    layers_[key.unsafeGetTensorImpl()] = std::move(layer);
  }
  LayerPtr find(const at::Tensor& weight, const at::Tensor& running_mean) {
    const at::Tensor& key = weight.defined() ? weight : running_mean;
    if (!key.defined()) return {};
    const base::Lock lock(mutex_);
    const auto found = layers_.find(key.unsafeGetTensorImpl());
    // Another tensor may have the address of one that has gone.
    const bool known = found != layers_.end() && !found->second->module.expired();
    return known ? found->second : LayerPtr();
  }

 private:
  base::Mutex mutex_;
  std::map<const c10::TensorImpl*, LayerPtr> layers_ LOCKSTEP_GUARDED_BY(mutex_);
};

Layers& layers() {
  static Layers all;
  return all;
}

thread_local NormExchange* exchange = nullptr;

// The rows of all passes. Errors say which layer it is.
NormExchange::Rows rows_of_all(SyncedLayer& layer, const std::string& name, const at::Tensor& row) {
  try {
    if (exchange != nullptr) return exchange->gather(name, row);
    Comm& comm = layer.announcements->comm();
    const CallName call(comm, name);
    // The channel of announcements moves memory of the host only. A row is short.
    return {all_gather(comm, row.cpu()).to(row.device()), comm.rank()};
  } catch (const Error& error) {
    raise(error.kind(), fmt::format("{}; {} is the layer {}", error.what(), layer.name, layer.path),
          error.ranks());
  }
}

// The rows of the passes that share statistics with this one, in order.
at::Tensor gather(SyncedLayer& layer, const std::string& name, const at::Tensor& row) {
  const NormExchange::Rows rows = rows_of_all(layer, name, row);
  if (layer.group == 0) return rows.all;
  const std::int64_t first = rows.own - rows.own % layer.group;
  return rows.all.slice(0, first, first + layer.group);
}

// One value per channel as a tensor that broadcasts over a batch.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return values.to(like.scalar_type()).view(shape);
}

// Over all passes that share them.
struct Statistics {
  double count = 0;    // values of a channel
  at::Tensor mean;     // double, as the next
  at::Tensor squares;  // sums of squared deviations from the mean
};

// The order of the additions is that of the passes, for every one of them.
Statistics combined(const at::Tensor& rows) {
  const std::int64_t channels = (rows.size(1) - 1) / 2;
  const at::Tensor counts = rows.select(1, 0).unsqueeze(1);
  const at::Tensor means = rows.slice(1, 1, 1 + channels);
  const at::Tensor squares = rows.slice(1, 1 + channels);
  Statistics all;
  all.count = counts.sum().item<double>();
  all.mean = (means * counts).sum(0) / all.count;
  all.squares = (squares + counts * (means - all.mean).square()).sum(0);
  return all;
}

Statistics statistics(const at::Tensor& input, SyncedLayer& layer) {
  const std::int64_t channels = input.size(1);
  const double count = static_cast<double>(input.numel()) / static_cast<double>(channels);
  at::Tensor row = at::zeros({1 + 2 * channels}, input.options().dtype(at::kDouble));
  if (count > 0 && !layer.idle()) {
    const auto [mean, variance] = at::batch_norm_update_stats(input, {}, {}, 0);
    row[0] = count;
    row.slice(0, 1, 1 + channels).copy_(mean);
    row.slice(0, 1 + channels).copy_(variance * count);
  }
  Statistics all = combined(gather(layer, layer.name, row));
  if (all.count > 1) return all;
  if (layer.idle())
    return {2, at::zeros_like(all.mean), at::ones_like(all.mean)};  // nothing counts
  throw BadInput(
      fmt::format("{}: all batches together have {} values of a channel, and statistics need two",
                  layer.name, all.count));
}

void follow(const at::Tensor& running, const at::Tensor& now, double momentum) {
  if (running.defined()) running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum);
}

// bfloat16 and float16 are computed in float32.
at::ScalarType computed_in(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// What a layer has besides weight and bias.
struct Running {
  at::Tensor mean;  // undefined: the layer keeps none
  at::Tensor variance;
  double momentum = 0;
  double eps = 0;
};

at::Tensor value_of(const OptionalTensor& tensor) {
  return tensor.has_value() ? *tensor : at::Tensor();
}
// LibTorch's functions take what is undefined only as nothing.
OptionalTensor if_defined(const OptionalTensor& tensor) {
  return value_of(tensor).defined() ? tensor : OptionalTensor();
}

// One pass through a layer, in backward.
struct BackwardPass : torch::CustomClassHolder {
  explicit BackwardPass(LayerPtr its) : layer(std::move(its)) {}

  LayerPtr layer;
  std::int64_t number = 0;  // of the layer's passes
  bool of_shard = false;    // other passes of this process share its statistics
  // Waits for the sums of all passes that share statistics, and computes the gradient of the input.
  std::function<at::Tensor()> input_gradient;
};
using BackwardPtr = c10::intrusive_ptr<BackwardPass>;

// A layer is two nodes of the graph. NormOutput computes the output, and in backward the sums over
// its own samples. NormInput stands before it, and gives the gradient of the input. All that
// connects the two is a token, a scalar on the CPU. So autograd runs NormInput on the thread that
// has called backward().
//
// Shards of one process meet in NormInput, because that thread may wait for them. On a GPU autograd
// runs all other nodes of all shards on one thread, which must not wait. Workers of a drop-in loop
// meet in NormOutput: that has one order, and one thread that uses the Comm.
class NormInput : public torch::autograd::Function<NormInput> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& /*input*/,
                            const BackwardPtr& pass) {
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    return at::zeros({});
  }

  static variable_list backward(AutogradContext* context, const variable_list& /*of_token*/) {
    const auto capsule = context->saved_data["pass"].toCapsule();
    auto& pass = static_cast<BackwardPass&>(*capsule);
    return {std::exchange(pass.input_gradient, nullptr)(), at::Tensor()};
  }
};

class NormOutput : public torch::autograd::Function<NormOutput> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& /*token*/,
                            const at::Tensor& input, const OptionalTensor& weight,
                            const OptionalTensor& bias, const Running& running,
                            const BackwardPtr& pass) {
    SyncedLayer& layer = *pass->layer;
    const at::ScalarType type = computed_in(input);
    const at::Tensor x = input.to(type);
    const Statistics all = statistics(x, layer);
    follow(running.mean, all.mean, running.momentum);
    follow(running.variance, all.squares / (all.count - 1), running.momentum);
    const at::Tensor mean = all.mean.to(type);
    const at::Tensor variance = (all.squares / all.count).to(type);
    pass->of_shard = exchange != nullptr;
    pass->number = exchange ? exchange->count(layer.name) : layer.passes++;
    context->save_for_backward({input, value_of(weight), mean, variance});
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    context->saved_data["count"] = all.count;
    context->saved_data["eps"] = running.eps;
    context->saved_data["idle"] = layer.idle();
    // With the statistics of all workers as running ones, the layer is in eval(). LibTorch divides by
    // the number of samples.
    if (x.numel() == 0) return at::empty_like(input);
    return std::get<0>(
               at::native_batch_norm(x, weight, bias, mean, variance, false, 0, running.eps))
        .to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["pass"].toCapsule();
    auto& pass = static_cast<BackwardPass&>(*capsule);
    if (at::GradMode::is_enabled()) {
      throw BadInput(fmt::format(
          "{}: gradients of gradients (create_graph) do not go through a SyncBatchNorm; use "
          "torch::nn::BatchNorm2d or GroupNorm there",
          pass.layer->name));
    }
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const double eps = context->saved_data["eps"].toDouble();
    const at::Tensor x = input.to(computed_in(input));
    const at::Tensor dy = gradients[0].to(x.scalar_type());
    auto [sum_dy_xhat, sum_dy] = own_sums(dy, x, weight, saved[2], saved[3], eps);
    at::Tensor of_token;
    if (context->needs_input_grad(0)) {
      const at::Tensor own = at::cat({sum_dy, sum_dy_xhat}).to(at::kDouble);
      if (context->saved_data["idle"].toBool()) own.zero_();
      // Of two passes, every worker goes back through the same one first.
      pass.input_gradient = [=, mean = saved[2], type = input.scalar_type(), layer = pass.layer,
                             name = fmt::format("{} back {}", pass.layer->name, pass.number),
                             invstd = saved[3].to(at::kDouble).add(eps).rsqrt(),
                             count = context->saved_data["count"].toDouble()] {
        const at::Tensor means = gather(*layer, name, own).sum(0) / count;
        return input_gradient(dy, x, weight, mean, invstd, means).to(type);
      };
      if (!pass.of_shard) pass.input_gradient = [dx = pass.input_gradient()] { return dx; };
      of_token = at::zeros({});
    }
    const at::Tensor none;
    return {of_token, none, weight.defined() ? sum_dy_xhat : none, weight.defined() ? sum_dy : none,
            none,     none};
  }

 private:
  // Σ dy · x̂ and Σ dy over this worker's samples: in eval() the gradients of weight and bias.
  static std::pair<at::Tensor, at::Tensor> own_sums(const at::Tensor& dy, const at::Tensor& x,
                                                    const at::Tensor& weight,
                                                    const at::Tensor& mean,
                                                    const at::Tensor& variance, double eps) {
    if (x.numel() == 0) return {at::zeros_like(mean), at::zeros_like(mean)};
    auto sums = at::native_batch_norm_backward(dy, x, weight, mean, variance, {}, {}, false, eps,
                                               {false, true, true});
    return {std::get<1>(sums), std::get<2>(sums)};
  }

  // (dy − mean of dy − x̂ · mean of dy · x̂) · invstd · weight
  static at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& weight, const at::Tensor& mean,
                                   const at::Tensor& invstd, const at::Tensor& means) {
    const std::int64_t channels = x.size(1);
    const at::Tensor mean_dy = means.slice(0, 0, channels);
    const at::Tensor slope = means.slice(0, channels) * invstd;
    const at::Tensor scale = weight.defined() ? weight.to(at::kDouble) * invstd : invstd;
    at::Tensor dx = dy - per_channel(mean_dy, x);
    dx.addcmul_(x - per_channel(mean, x), per_channel(slope, x), -1);
    return dx.mul_(per_channel(scale, x));
  }
};

// In place of LibTorch's.
// NOLINTNEXTLINE(readability-function-size): LibTorch's parameters
at::Tensor batch_norm(const at::Tensor& input, const OptionalTensor& weight,
                      const OptionalTensor& bias, const OptionalTensor& running_mean,
                      const OptionalTensor& running_var, bool training, double momentum, double eps,
                      bool cudnn_enabled) {
  LayerPtr layer;
  if (training) layer = layers().find(value_of(weight), value_of(running_mean));
  const auto module = layer ? layer->module.lock() : nullptr;
  if (!module || !module->is_training()) {
    return at::compositeimplicitautograd::batch_norm(input, weight, bias, running_mean, running_var,
                                                     training, momentum, eps, cudnn_enabled);
  }
  const auto pass = c10::make_intrusive<BackwardPass>(layer);
  return NormOutput::apply(
      NormInput::apply(input, pass), input.detach(), if_defined(weight), if_defined(bias),
      Running{value_of(running_mean), value_of(running_var), momentum, eps}, pass);
}

void override_operator() {
  static const auto overrides = [] {
    std::vector<std::unique_ptr<torch::Library>> all;
    for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA,
                           c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
      auto library =
          std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      library->impl("batch_norm", batch_norm);
      all.push_back(std::move(library));
    }
    return all;
  }();
}

// A batch norm, and what workers must agree on of it. No options: another module.
struct BatchNorm {
  at::Tensor weight;
  at::Tensor running_mean;
  std::string options;
};

template <typename Layer>
void look_at(const torch::nn::Module& module, BatchNorm& found) {
  const auto* const layer = dynamic_cast<const Layer*>(&module);
  if (layer == nullptr) return;
  const auto& options = layer->options;
  found = {layer->weight, layer->running_mean,
           fmt::format("{} channels, eps {}, momentum {}, {} weights, {} running statistics",
                       options.num_features(), options.eps(), options.momentum().value_or(0),
                       options.affine() ? "with" : "without",
                       options.track_running_stats() ? "with" : "without")};
}

BatchNorm as_batch_norm(const torch::nn::Module& module) {
  BatchNorm found;
  look_at<torch::nn::BatchNorm1dImpl>(module, found);
  look_at<torch::nn::BatchNorm2dImpl>(module, found);
  look_at<torch::nn::BatchNorm3dImpl>(module, found);
  look_at<SyncBatchNormImpl>(module, found);
  return found;
}

}  // namespace

NormScope::NormScope(NormExchange& others) : before_(exchange) {
  exchange = &others;
}
NormScope::~NormScope() {
  exchange = before_;
}

std::string describe_synced_norms(const std::vector<NamedTensor>& tensors) {
  std::set<std::string> found;  // a layer without weights is known by its running mean
  std::int64_t group = 0;
  for (const auto& [name, tensor] : tensors) {
    const LayerPtr layer = layers().find(tensor, {});
    if (!layer) continue;
    found.insert(layer->name);
    group = layer->group;
  }
  if (found.empty()) return {};
  return fmt::format("{} layers{}", found.size(),
                     group > 0 ? fmt::format(" in groups of {}", group) : "");
}

}  // namespace lockstep::replica

namespace lockstep {

std::size_t convert_sync_batchnorm(torch::nn::Module& module, World& world,
                                   const SyncBatchNormOptions& options) {
  if (options.group < 0)
    throw BadInput(
        fmt::format("SyncBatchNormOptions::group is {}: it is 0 or above", options.group));
  std::vector<std::pair<at::Tensor, c10::intrusive_ptr<replica::SyncedLayer>>> found;
  std::vector<replica::Property> properties = {{"group", std::to_string(options.group)}};
  for (const auto& item : module.named_modules()) {
    const replica::BatchNorm norm = replica::as_batch_norm(*item.value());
    if (norm.options.empty()) continue;
    properties.push_back({"batch norm " + item.key(), norm.options});
    auto layer = c10::make_intrusive<replica::SyncedLayer>();
    layer->announcements = world.announcements();
    layer->module = item.value();
    layer->group = options.group;
    layer->name = fmt::format("SyncBatchNorm {}", found.size());
    layer->path = item.key();
    found.emplace_back(norm.weight.defined() ? norm.weight : norm.running_mean, std::move(layer));
  }
  {
    Comm& comm = world.announcements()->comm();
    const CallName call(comm, "convert_sync_batchnorm()");
    replica::agree(
        comm, properties,
        {"workers convert different batch norms", "build the same module on all of them"});
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].first.defined()) continue;
    throw BadInput(
        fmt::format("the {} has neither weights nor running statistics, and cannot be converted",
                    properties[i + 1].name));
  }
  for (auto& [key, layer] : found) replica::layers().put(key, std::move(layer));
  replica::override_operator();
  return found.size();
}

// As in LibTorch's batch norms, but one value per channel is allowed: other workers may have more.
torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  _check_input_dim(input);
  double momentum = options.momentum().value_or(0);
  if (is_training()) {
    if (!replica::layers().find(weight, running_mean)) {
      throw BadInput(
          "a SyncBatchNorm trains before it has a world: call lockstep::convert_sync_batchnorm() "
          "with the module and the world first");
    }
    if (options.track_running_stats()) num_batches_tracked += 1;
    if (options.track_running_stats() && !options.momentum())
      momentum = 1 / num_batches_tracked.item<double>();
  }
  return at::batch_norm(input, weight, bias, running_mean, running_var,
                        is_training() || !options.track_running_stats(), momentum, options.eps(),
                        at::globalContext().userEnabledCuDNN());
}

void SyncBatchNormImpl::_check_input_dim(const torch::Tensor& input) {
  if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
  throw BadInput(fmt::format(
      "a SyncBatchNorm of {} channels got an input {}: its second dimension is the channels",
      options.num_features(), replica::describe(input)));
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=" << options.momentum().value_or(0)
         << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ")";
}

}  // namespace lockstep
