#include "torch/replica/tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/hash.h"

namespace lockstep::replica {
namespace {

// The types that have a name of their own here. `dtype` is nullopt for those that workers cannot
// add.
struct KnownType {
  c10::ScalarType torch;
  std::string_view name;
  std::optional<DType> dtype;
};
constexpr std::array kTypes{
    KnownType{c10::ScalarType::Float, "float32", DType::kFloat32},
    KnownType{c10::ScalarType::Double, "float64", DType::kFloat64},
    KnownType{c10::ScalarType::Half, "float16", DType::kFloat16},
    KnownType{c10::ScalarType::BFloat16, "bfloat16", DType::kBFloat16},
    KnownType{c10::ScalarType::Int, "int32", DType::kInt32},
    KnownType{c10::ScalarType::Long, "int64", DType::kInt64},
    KnownType{c10::ScalarType::Byte, "uint8", DType::kUInt8},
    KnownType{c10::ScalarType::Short, "int16", std::nullopt},
    KnownType{c10::ScalarType::Char, "int8", std::nullopt},
    KnownType{c10::ScalarType::Bool, "bool", std::nullopt},
};

KnownType type_of(c10::ScalarType type) {
  for (const KnownType& known : kTypes) {
    if (known.torch == type) return known;
  }
  return {type, c10::toString(type), std::nullopt};
}

std::string shape_text(const torch::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

}  // namespace

DType reducible_dtype(const torch::Tensor& tensor, std::string_view name) {
  const KnownType type = type_of(tensor.scalar_type());
  if (type.dtype && c10::isFloatingType(type.torch)) return *type.dtype;
  throw BadInput(
      fmt::format("parameter {} is {}: gradients are averaged as float32, float64, float16 or "
                  "bfloat16; convert it, or freeze it with requires_grad_(false)",
                  name, type.name));
}

DType summable_dtype(const torch::Tensor& tensor) {
  if (const auto dtype = type_of(tensor.scalar_type()).dtype) return *dtype;
  throw BadInput(fmt::format("workers cannot add up {}: convert it, such as to torch::kInt64",
                             describe(tensor)));
}

c10::ScalarType scalar_type(DType dtype) {
  return std::find_if(kTypes.begin(), kTypes.end(),
                      [&](const KnownType& type) { return type.dtype == dtype; })
      ->torch;
}

std::string describe(const torch::Tensor& tensor) {
  return fmt::format("{} {}", type_of(tensor.scalar_type()).name, shape_text(tensor));
}

Buffer bytes_of(const torch::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.nbytes(), DType::kUInt8};
}

torch::Tensor host_contiguous(const torch::Tensor& tensor) {
  return tensor.detach().to(torch::kCPU).contiguous();
}

// Counts the references to the memory that the hook itself explains: the gradient, `incoming` if it
// has the same memory, and the tensor that `incoming` is a view of. Any further one is somebody
// else's.
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
  return grad.layout() == torch::kStrided && grad.data_ptr() == view.data_ptr() &&
         grad.sizes() == view.sizes() && grad.strides() == view.strides();
}

std::string digest(std::vector<NamedTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  base::Sha256 hash;
  for (const auto& [name, tensor] : tensors) {
    const torch::Tensor host = host_contiguous(tensor);
    for (const std::string& part :
         {name, std::string(type_of(host.scalar_type()).name), shape_text(host)}) {
      hash.update({part.c_str(), part.size() + 1});
    }
    hash.update({static_cast<const char*>(host.data_ptr()), host.nbytes()});
  }
  return base::to_hex(hash.finish());
}

}  // namespace lockstep::replica
