// Tensors as comm/ and plan/ see them, and their digests.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/data_parallel.h>

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::replica {

// BadInput, naming the tensor, for a type that no reduction can add.
DType reducible_dtype(const torch::Tensor& tensor, std::string_view name);

// BadInput for a type that no collective can add up.
DType summable_dtype(const torch::Tensor& tensor);

// LibTorch's type of the same name.
c10::ScalarType scalar_type(DType dtype);

// bfloat16 or float16
constexpr bool is_half(c10::ScalarType type) {
  return type == c10::ScalarType::BFloat16 || type == c10::ScalarType::Half;
}

// "float32 [128, 784]"
std::string describe(const torch::Tensor& tensor);

// The bytes of a contiguous CPU tensor.
Buffer bytes_of(const torch::Tensor& tensor);

// A contiguous copy on the CPU, or the tensor itself if it is one.
torch::Tensor host_contiguous(const torch::Tensor& tensor);

// In a hook of a parameter's gradient, with what came in there: whether nobody else has the gradient's memory. LibTorch may
// hand on as a view what another function of the backward pass has yet to read, or what is another parameter's gradient,
// too: writing to such a gradient would change those.
bool has_own_memory(const torch::Tensor& grad, const torch::Tensor& incoming);

// Whether two tensors lie in memory alike, and on the same device.
bool in_the_same_order(const torch::Tensor& a, const torch::Tensor& b);

// Whether a gradient is the memory that a view shows. Only what is strided has memory of its own.
bool is_in(const torch::Tensor& grad, const torch::Tensor& view);

// The bytes of all tensors, one after the other, and back. unpack writes through .data(): a graph that
// saved a tensor keeps its version, as after DDP's broadcast.
std::vector<std::byte> pack(const std::vector<NamedTensor>& tensors);
void unpack(const std::vector<std::byte>& bytes, const std::vector<NamedTensor>& tensors);

// SHA-256 in hex over the tensors sorted by name. For each, with no separators but those shown:
//   name \0 dtype \0 [d0, d1, …] \0 row-major little-endian bytes
// dtype as in describe(): float32, int64, bool …
std::string digest(std::vector<NamedTensor> tensors);

}  // namespace lockstep::replica
