#include "torch/replica/tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace lockstep::replica {
namespace {

std::string_view spelled(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return "float32";
    case c10::ScalarType::Double:
      return "float64";
    case c10::ScalarType::Half:
      return "float16";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    case c10::ScalarType::Int:
      return "int32";
    case c10::ScalarType::Long:
      return "int64";
    case c10::ScalarType::Short:
      return "int16";
    case c10::ScalarType::Char:
      return "int8";
    case c10::ScalarType::Byte:
      return "uint8";
    case c10::ScalarType::Bool:
      return "bool";
    default:
      return c10::toString(type);
  }
}

std::string shape_text(const torch::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

}  // namespace

DType reducible_dtype(const torch::Tensor& tensor, std::string_view name) {
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float:
      return DType::kFloat32;
    case c10::ScalarType::Double:
      return DType::kFloat64;
    case c10::ScalarType::Half:
      return DType::kFloat16;
    case c10::ScalarType::BFloat16:
      return DType::kBFloat16;
    default:
      throw BadInput(
          fmt::format("parameter {} is {}: gradients are averaged as float32, float64, float16 or "
                      "bfloat16; convert it, or freeze it with requires_grad_(false)",
                      name, spelled(tensor.scalar_type())));
  }
}

DType summable_dtype(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Int:
      return DType::kInt32;
    case c10::ScalarType::Long:
      return DType::kInt64;
    case c10::ScalarType::Byte:
      return DType::kUInt8;
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
      return reducible_dtype(tensor, "tensor");
    default:
      throw BadInput(fmt::format("workers cannot add up {}: convert it, such as to torch::kInt64",
                                 describe(tensor)));
  }
}

c10::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return c10::ScalarType::Float;
    case DType::kFloat64:
      return c10::ScalarType::Double;
    case DType::kFloat16:
      return c10::ScalarType::Half;
    case DType::kBFloat16:
      return c10::ScalarType::BFloat16;
    case DType::kInt32:
      return c10::ScalarType::Int;
    case DType::kInt64:
      return c10::ScalarType::Long;
    case DType::kUInt8:
      break;
  }
  return c10::ScalarType::Byte;
}

std::string describe(const torch::Tensor& tensor) {
  return fmt::format("{} {}", spelled(tensor.scalar_type()), shape_text(tensor));
}

Buffer bytes_of(const torch::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.nbytes(), DType::kUInt8};
}

torch::Tensor host_contiguous(const torch::Tensor& tensor) {
  return tensor.detach().to(torch::kCPU).contiguous();
}

// While the hook runs, what came in is held, and what that is a view of is held by it. Both have the gradient's memory where
// LibTorch did not copy it.
bool has_own_memory(const torch::Tensor& grad, const torch::Tensor& incoming) {
  if (grad.layout() != torch::kStrided) return false;
  const auto* const memory = grad.storage().unsafeGetStorageImpl();
  std::size_t known = 1;
  if (incoming.defined() && incoming.layout() == torch::kStrided && !incoming.is_same(grad) &&
      incoming.storage().unsafeGetStorageImpl() == memory) {
    ++known;
    if (incoming.is_view()) {
      constexpr std::size_t kTheViewAndThis = 2;
      const at::TensorBase whole = incoming._base();  // NOLINT: a copy, which counts as "this"
      if (whole.use_count() > kTheViewAndThis) return false;
      ++known;
    }
  }
  return grad.storage().use_count() <= known;
}

std::vector<std::byte> pack(const std::vector<NamedTensor>& tensors) {
  std::size_t bytes = 0;
  for (const NamedTensor& named : tensors) bytes += named.tensor.nbytes();
  std::vector<std::byte> packed(bytes);
  std::byte* to = packed.data();
  for (const NamedTensor& named : tensors) {
    const torch::Tensor host = host_contiguous(named.tensor);
    if (host.nbytes() > 0) std::memcpy(to, host.data_ptr(), host.nbytes());
    to += host.nbytes();
  }
  return packed;
}

void unpack(const std::vector<std::byte>& bytes, const std::vector<NamedTensor>& tensors) {
  torch::NoGradGuard no_grad;
  auto* from = const_cast<std::byte*>(bytes.data());
  for (const NamedTensor& named : tensors) {
    const auto options = torch::TensorOptions().dtype(named.tensor.dtype());
    named.tensor.data().copy_(torch::from_blob(from, named.tensor.sizes(), options));
    from += named.tensor.nbytes();
  }
}

bool in_the_same_order(const torch::Tensor& a, const torch::Tensor& b) {
  return a.layout() == torch::kStrided && a.device() == b.device() && a.strides() == b.strides() &&
         b.is_non_overlapping_and_dense();
}

bool is_in(const torch::Tensor& grad, const torch::Tensor& view) {
  return grad.layout() == torch::kStrided && grad.data_ptr() == view.data_ptr();
}

std::string digest(std::vector<NamedTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  base::Sha256 hash;
  for (const auto& [name, tensor] : tensors) {
    const torch::Tensor host = host_contiguous(tensor);
    for (const std::string& part :
         {name, std::string(spelled(host.scalar_type())), shape_text(host)}) {
      hash.update({part.c_str(), part.size() + 1});
    }
    hash.update({static_cast<const char*>(host.data_ptr()), host.nbytes()});
  }
  return base::to_hex(hash.finish());
}

}  // namespace lockstep::replica
