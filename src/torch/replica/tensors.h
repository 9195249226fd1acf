// Types, bytes and digests of tensors, for comm/ and plan/, which know no tensors.
#pragma once

#include <lockstep/buffer.h>
#include <lockstep/data_parallel.h>

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::replica {

// The type of a gradient. BadInput, naming the parameter, if it is not a floating-point type that
// gradients can have.
DType reducible_dtype(const torch::Tensor& tensor, std::string_view name);

// The type of a tensor in a collective. BadInput if workers cannot add it.
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

// A contiguous tensor on the CPU: the tensor itself if it is one, else a copy.
torch::Tensor host_contiguous(const torch::Tensor& tensor);

// Whether nobody else has the memory of a gradient. To be called in the hook of its accumulator,
// with what the hook got. LibTorch may pass on memory that another function of the pass has yet to
// read, or that is also the gradient of another parameter. Writing to such a gradient would change
// those.
bool has_own_memory(const torch::Tensor& grad, const torch::Tensor& incoming);

// Whether two tensors have their elements in the same order in memory, without gaps, on one device.
bool in_the_same_order(const torch::Tensor& a, const torch::Tensor& b);

// Whether a gradient is in the memory of a view, in the same order. A sparse one never is.
bool is_in(const torch::Tensor& grad, const torch::Tensor& view);

// The bytes of all tensors, one after the other, and back. unpack() writes through .data(), which
// does not count as a write: a graph that saved a tensor can still run backward, as with DDP.
std::vector<std::byte> pack(const std::vector<NamedTensor>& tensors);
void unpack(const std::vector<std::byte>& bytes, const std::vector<NamedTensor>& tensors);

// SHA-256 in hex over the tensors sorted by name. For each, with no separators but those shown:
//   name \0 dtype \0 [d0, d1, …] \0 row-major little-endian bytes
// dtype as in describe(): float32, int64, bool …
std::string digest(std::vector<NamedTensor> tensors);

}  // namespace lockstep::replica
