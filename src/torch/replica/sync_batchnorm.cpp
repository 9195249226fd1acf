// LibTorch's layers call the operator aten::batch_norm. It is overridden here, on the first
// conversion, for all layers of the process; layers that nobody converted get LibTorch's own. A
// layer is known by its weight, or by its running mean if it has no weight: these tensors stay the
// same objects when a module moves to a device or into data_parallel()'s memory.
#include <ATen/ops/batch_norm_compositeimplicitautograd_dispatch.h>
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/sync_batchnorm.h>
#include <torch/library.h>

#include <algorithm>
#include <ios>
#include <map>
#include <memory>
#include <numeric>
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
#include "torch/replica/device_norm.h"
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
NormRows rows_of_all(SyncedLayer& layer, const std::string& name, const NormRow& row) {
  try {
    if (exchange != nullptr) return exchange->gather(name, row);
    Comm& comm = layer.announcements->comm();
    const CallName call(comm, name);
    NormRows rows = unpacked(all_gather(comm, packed({row})[0]), row.numbers);
    rows.own = comm.rank();
    return rows;
  } catch (const Error& error) {
    raise(error.kind(), fmt::format("{}; {} is the layer {}", error.what(), layer.name, layer.path),
          error.ranks());
  }
}

// Calls visit(first, last) for each group of passes that share statistics.
template <typename Visit>
void for_each_group(const SyncedLayer& layer, const NormRows& rows, const Visit& visit) {
  const auto passes = static_cast<std::int64_t>(rows.counts.size());
  const std::int64_t size = layer.group == 0 ? passes : layer.group;
  for (std::int64_t first = 0; first < passes; first += size)
    visit(first, std::min(first + size, passes));
}

// The rows of the passes that share statistics with this one, in order.
NormRows of_group(const SyncedLayer& layer, NormRows rows) {
  NormRows own;
  for_each_group(layer, rows, [&](std::int64_t first, std::int64_t last) {
    if (rows.own < first || rows.own >= last) return;
    own.all = rows.all.slice(0, first, last);
    own.counts = {rows.counts.begin() + first, rows.counts.begin() + last};
  });
  return own;
}

// Every worker looks at all groups, so that all fail together. A group of which nobody has samples
// may only be of idle workers.
void check_counts(const SyncedLayer& layer, const NormRows& rows) {
  for_each_group(layer, rows, [&](std::int64_t first, std::int64_t last) {
    const double count =
        std::accumulate(rows.counts.begin() + first, rows.counts.begin() + last, 0.0);
    const bool own = rows.own >= first && rows.own < last;
    if (count > 1 || (count == 0 && (!own || layer.idle()))) return;
    throw BadInput(
        fmt::format("{}: all batches together have {} values of a channel, and statistics need two",
                    layer.name, count));
  });
}

// Finds the statistics of all passes that share them. Returns the number of values of a channel.
double find_statistics(NormPass& pass, const NormRunning& running, SyncedLayer& layer) {
  const at::Tensor& input = pass.input;
  const bool counts = input.numel() > 0 && !layer.idle();
  const double own = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
  NormRows all = rows_of_all(
      layer, layer.name, {counts ? own : 0, counts ? own_statistics(pass) : no_statistics(pass)});
  check_counts(layer, all);
  const NormRows rows = of_group(layer, std::move(all));
  const double count = std::accumulate(rows.counts.begin(), rows.counts.end(), 0.0);
  if (count == 0) {
    set_no_statistics(pass);
    return 2;  // nothing counts
  }
  set_statistics(pass, rows, running);
  return count;
}

at::Tensor value_of(const OptionalTensor& tensor) {
  return tensor.has_value() ? *tensor : at::Tensor();
}
// LibTorch's functions take what is undefined only as nothing.
OptionalTensor if_defined(const OptionalTensor& tensor) {
  return value_of(tensor).defined() ? tensor : OptionalTensor();
}

// A pass through a layer. All passes that share its statistics meet in forward, and in backward
// again. In a Step each pass has a thread of its own, on which forward and backward run.
class SyncedNorm : public torch::autograd::Function<SyncedNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const OptionalTensor& weight, const OptionalTensor& bias,
                            const NormRunning& running, const LayerPtr& layer) {
    NormPass pass = pass_of(input, value_of(weight), running.eps);
    const double count = find_statistics(pass, running, *layer);
    const auto number = exchange ? exchange->count(layer->name) : layer->passes++;
    context->save_for_backward(
        {pass.input, value_of(weight), pass.mean, pass.variance, pass.inverse});
    context->saved_data["layer"] = c10::IValue::make_capsule(layer);
    // Of two passes, every worker goes back through the same one first.
    context->saved_data["name"] = fmt::format("{} back {}", layer->name, number);
    context->saved_data["count"] = count;
    context->saved_data["eps"] = running.eps;
    context->saved_data["idle"] = layer->idle();
    return normalized(pass, value_of(bias));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["layer"].toCapsule();
    auto& layer = static_cast<SyncedLayer&>(*capsule);
    if (at::GradMode::is_enabled()) {
      throw BadInput(fmt::format(
          "{}: gradients of gradients (create_graph) do not go through a SyncBatchNorm; use "
          "torch::nn::BatchNorm2d or GroupNorm there",
          layer.name));
    }
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& weight = saved[1];
    NormPass pass = pass_of(saved[0], weight, context->saved_data["eps"].toDouble());
    pass.mean = saved[2];
    pass.variance = saved[3];
    pass.inverse = saved[4];
    const NormSums own = own_sums(pass, gradients[0]);
    at::Tensor of_input;
    if (context->needs_input_grad(0)) {
      const at::Tensor row = at::cat({own.dy, own.dy_xhat});
      if (context->saved_data["idle"].toBool()) row.zero_();
      const at::Tensor all =
          of_group(layer, rows_of_all(layer, context->saved_data["name"].toStringRef(), {0, row}))
              .all.sum(0);
      const std::int64_t channels = pass.mean.numel();
      of_input =
          input_gradient(pass, gradients[0], {all.slice(0, 0, channels), all.slice(0, channels)},
                         context->saved_data["count"].toDouble());
    }
    const at::Tensor none;
    if (!weight.defined()) return {of_input, none, none, none, none};
    const auto type = weight.scalar_type();
    return {of_input, own.dy_xhat.to(type), own.dy.to(type), none, none};
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
  return SyncedNorm::apply(
      input, if_defined(weight), if_defined(bias),
      NormRunning{value_of(running_mean), value_of(running_var), momentum, eps}, layer);
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

at::Tensor stacked(const std::vector<NormRow>& rows) {
  std::vector<at::Tensor> all;
  all.reserve(rows.size());
  for (const NormRow& row : rows)
    all.push_back(row.numbers.defined() ? row.numbers : at::zeros_like(rows.front().numbers));
  return at::stack(all);
}

at::Tensor packed(const std::vector<NormRow>& rows) {
  const at::Tensor numbers = stacked(rows).to(at::kCPU, at::kDouble);
  const at::Tensor counts = at::empty({numbers.size(0), 1}, at::kDouble);
  for (std::size_t i = 0; i < rows.size(); ++i) counts.data_ptr<double>()[i] = rows[i].count;
  return at::cat({counts, numbers}, 1);
}

NormRows unpacked(const at::Tensor& rows, const at::Tensor& like) {
  NormRows unpacked;
  const at::Tensor counts = rows.select(1, 0).contiguous();
  const auto* const first = counts.data_ptr<double>();
  unpacked.counts = {first, first + counts.numel()};
  unpacked.all = uploaded(rows.slice(1, 1), like);
  return unpacked;
}

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
