#include "torch/replica/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/hash.h"
#include "flat/chunks.h"
#include "flat/half.h"
#include "torch/device/device.h"
#include "torch/device/instructions.h"
#include "torch/replica/agreement.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {
namespace {

std::vector<NamedTensor> each_once(std::vector<NamedTensor> tensors) {
  std::set<const c10::TensorImpl*> seen;
  std::erase_if(tensors, [&](const NamedTensor& named) {
    return !named.tensor.defined() || !seen.insert(named.tensor.unsafeGetTensorImpl()).second;
  });
  return tensors;
}

void check_names(const Model& model) {
  std::set<std::string> names;
  const std::vector<NamedTensor> all = model.everything();
  for (const auto& [name, tensor] : all) {
    if (!names.insert(name).second)
      throw BadInput(fmt::format("two tensors of the model are named {}: rename one", name));
    const torch::Device first = all.front().tensor.device();
    if (tensor.device() != first || !device::known(first)) {
      throw BadInput(
          fmt::format("{} lies on {}, and the model begins on {}: move all of it to one "
                      "GPU, or to the CPU",
                      name, tensor.device().str(), first.str()));
    }
  }
}

// Each parameter gets memory of its own in the layout. Two that shared values before would then
// differ.
void check_apart(const std::vector<NamedTensor>& trained) {
  std::map<const char*, const NamedTensor*> begins;
  for (const NamedTensor& named : trained) {
    if (named.tensor.numel() > 0)
      begins[static_cast<const char*>(named.tensor.data_ptr())] = &named;
  }
  for (const NamedTensor& named : trained) {
    if (named.tensor.numel() == 0) continue;
    const auto* begin = static_cast<const char*>(named.tensor.data_ptr());
    auto at = begins.find(begin);
    const NamedTensor* before = at->second != &named ? at->second : nullptr;
    if (before == nullptr && at != begins.begin()) {
      --at;
      if (at->first + at->second->tensor.nbytes() > begin && at->second->tensor.is_contiguous())
        before = at->second;
    }
    if (before == nullptr) continue;
    throw BadInput(
        fmt::format("parameters {} and {} share memory without being one tensor: tie them by "
                    "registering the same tensor, or clone one",
                    before->name, named.name));
  }
}

// With the strides: workers add memory to memory, so elements must be in the same order on all.
std::string describe_memory(const torch::Tensor& tensor) {
  if (tensor.is_contiguous()) return describe(tensor);
  return fmt::format("{}, strides [{}]", describe(tensor), fmt::join(tensor.strides(), ", "));
}

}  // namespace

std::vector<NamedTensor> Model::everything() const {
  std::vector<NamedTensor> all = parameters;
  all.insert(all.end(), buffers.begin(), buffers.end());
  return all;
}

Model sort_all(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers) {
  Model model{each_once(std::move(parameters)), {}, each_once(std::move(buffers))};
  check_names(model);
  return model;
}

Model sort_tensors(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers) {
  Model model = sort_all(std::move(parameters), std::move(buffers));
  for (const NamedTensor& named : model.parameters) {
    if (!named.tensor.requires_grad()) continue;
    if (!named.tensor.is_leaf())
      throw BadInput(fmt::format("{} is no leaf of the graph: pass parameters", named.name));
    model.trained.push_back(named);
  }
  check_apart(model.trained);
  if (model.trained.empty())
    throw BadInput(
        "the model has no parameter that requires a gradient. A frozen model, such as a teacher, "
        "needs no data_parallel(): load the same file on every worker, call eval(), and use it");
  return model;
}

void agree_on_model(Comm& comm, const Model& model, const DataParallelOptions& options) {
  const Device device = device::of(model.trained.front().tensor);
  std::vector<Property> properties = {{"instructions", device::instructions_on(device)}};
  for (const auto& [name, tensor] : model.parameters) {
    properties.push_back({"parameter " + name,
                          describe_memory(tensor) + (tensor.requires_grad() ? "" : ", frozen")});
  }
  for (const auto& [name, tensor] : model.buffers)
    properties.push_back({"buffer " + name, describe_memory(tensor)});
  const auto number = [](auto value) { return std::to_string(static_cast<std::size_t>(value)); };
  properties.push_back({"option name", options.name});
  properties.push_back({"option check_weights", number(options.check_weights)});
  properties.push_back({"option missing_gradient", number(options.missing_gradient)});
  properties.push_back({"option buffers", number(options.buffers)});
  properties.push_back({"option first_bucket_bytes", number(options.first_bucket_bytes)});
  properties.push_back({"option bucket_bytes", number(options.bucket_bytes)});
  properties.push_back({"option algorithm", name(options.algorithm)});
  properties.push_back({"option codec", options.codec ? options.codec->name() : "none"});
  agree(comm, properties,
        {"workers hold different models",
         "build the same model from the same options on every worker"},
        {{"instructions",
          {"workers compute with different instructions, which round differently: the weights "
           "would depend on the machines",
           "set ATEN_CPU_CAPABILITY, OPENBLAS_CORETYPE and ONEDNN_MAX_CPU_ISA to what all workers "
           "have, before the processes start"}}});
}

void copy_from(Comm& comm, int source, const std::vector<NamedTensor>& tensors) {
  if (comm.size() == 1) return;
  std::vector<torch::Tensor> hosts;
  std::vector<Work> works;
  for (const NamedTensor& named : tensors) {
    hosts.push_back(host_contiguous(named.tensor));
    works.push_back(comm.broadcast(bytes_of(hosts.back()), source));
  }
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    works[i].wait();
    torch::Tensor tensor = tensors[i].tensor.detach();
    if (tensor.data_ptr() != hosts[i].data_ptr()) tensor.copy_(hosts[i]);
  }
}

namespace {

// Some gigabytes a second: everything is read once more.
std::uint64_t quick_digest(const std::vector<torch::Tensor>& tensors) {
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;
  std::uint64_t digest = 0;
  for (const torch::Tensor& tensor : tensors) {
    const auto* const bytes = static_cast<const std::byte*>(tensor.data_ptr());
    for (std::size_t first = 0; first < tensor.nbytes(); first += sizeof digest) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + first, std::min(sizeof word, tensor.nbytes() - first));
      digest = (std::rotl(digest, 5) ^ word) * kFactor;
    }
  }
  return base::mix64(digest);
}

}  // namespace

void check_arrived(Comm& comm, int source, const std::vector<torch::Tensor>& arrived) {
  std::vector<std::int64_t> digests(static_cast<std::size_t>(comm.size()));
  digests[static_cast<std::size_t>(comm.rank())] = static_cast<std::int64_t>(quick_digest(arrived));
  comm.all_gather({digests.data(), digests.size(), DType::kInt64}).wait();
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (digests[static_cast<std::size_t>(rank)] == digests[static_cast<std::size_t>(source)])
      continue;
    throw Mismatch(
        fmt::format("the state of rank {} has changed on its way to rank {}", source, rank),
        {source, rank});
  }
}

void bring_from(Comm& comm, int source, const std::vector<NamedTensor>& tensors, bool takes) {
  std::vector<torch::Tensor> arrived;
  std::vector<Work> works;
  for (const NamedTensor& named : tensors) {
    const torch::Tensor own = host_contiguous(named.tensor);
    arrived.push_back(comm.rank() == source ? own : torch::empty_like(own));
    works.push_back(comm.broadcast(bytes_of(arrived.back()), source));
  }
  for (Work& work : works) work.wait();
  check_arrived(comm, source, arrived);
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors.size() && takes; ++i)
    tensors[i].tensor.detach().copy_(arrived[i]);
}

plan::Layout layout_of(const std::vector<NamedTensor>& trained) {
  std::vector<plan::Parameter> parameters;
  parameters.reserve(trained.size());
  for (const auto& [name, tensor] : trained) {
    parameters.push_back(
        {name, reducible_dtype(tensor, name), static_cast<std::size_t>(tensor.numel())});
  }
  return plan::Layout(parameters);
}

ModelPlan plan_model(plan::Layout layout, int slices, Reach reach,
                     const DataParallelOptions& options) {
  const plan::BucketOptions limits =
      reach == Reach::kMemory
          ? plan::BucketOptions{SIZE_MAX, SIZE_MAX}
          : plan::BucketOptions{std::min(options.first_bucket_bytes, options.bucket_bytes),
                                options.bucket_bytes};
  ModelPlan plan{std::move(layout), {}, {}};
  plan.pieces = plan::plan_pieces(plan.layout, slices);
  plan.buckets = plan::plan_buckets(plan.layout, limits);
  return plan;
}

std::optional<plan::Layout> layout_of_sums(const plan::Layout& layout) {
  const bool has_halves = std::any_of(layout.entries().begin(), layout.entries().end(),
                                      [](const auto& entry) { return flat::is_half(entry.dtype); });
  return has_halves ? std::optional(flat::wide_layout(layout)) : std::nullopt;
}

}  // namespace lockstep::replica
