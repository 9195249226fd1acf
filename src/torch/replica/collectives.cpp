#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/tensors.h>

#include "torch/device/device.h"
#include "torch/replica/collectives.h"
#include "torch/replica/tensors.h"

namespace lockstep {
namespace {

// The elements of a tensor as dense memory, which a collective needs. If the tensor is not dense,
// it is a copy; put_back() then copies the result to the tensor.
class InPlace {
 public:
  explicit InPlace(const torch::Tensor& tensor)
      : tensor_(tensor.detach()), dense_(tensor_.contiguous()) {}

  const torch::Tensor& dense() const { return dense_; }
  void put_back() const {
    if (!dense_.is_same(tensor_)) tensor_.copy_(dense_);
  }

 private:
  torch::NoGradGuard no_grad_;
  torch::Tensor tensor_;
  torch::Tensor dense_;
};

Buffer buffer_of(const torch::Tensor& tensor, DType dtype) {
  const Device device = device::of(tensor);
  return {tensor.data_ptr(), tensor.nbytes() / size_of(dtype), dtype, device,
          device::current_stream(device)};
}

void require(const torch::Tensor& tensor, const char* call) {
  if (!tensor.defined()) throw BadInput(fmt::format("{} of an undefined tensor", call));
  if (tensor.layout() != torch::kStrided)
    throw BadInput(fmt::format("{} of a sparse tensor: pass tensor.to_dense()", call));
}

void wait(const Work& work, const torch::Tensor& tensor) {
  work.wait_on(device::current_stream(device::of(tensor)));
}

// "all_reduce(float32 [16, 8])". Workers compare the names of their calls, so a name with type and
// shape finds tensors that differ.
std::string name_of(const char* call, const torch::Tensor& tensor) {
  return fmt::format("{}({})", call, replica::describe(tensor));
}

}  // namespace

namespace replica {

Work start_all_reduce(Comm& comm, const torch::Tensor& tensor, const ReduceOptions& options) {
  return comm.all_reduce(buffer_of(tensor, summable_dtype(tensor)), options);
}

void finish_all_reduce(const Work& work, const torch::Tensor& tensor) {
  wait(work, tensor);
}

void all_reduce(Comm& comm, const torch::Tensor& tensor, const ReduceOptions& options) {
  finish_all_reduce(start_all_reduce(comm, tensor, options), tensor);
}

torch::Tensor all_gather(Comm& comm, const torch::Tensor& tensor) {
  torch::NoGradGuard no_grad;
  std::vector<std::int64_t> shape{comm.size()};
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  const torch::Tensor all = torch::empty(shape, tensor.options().requires_grad(false));
  all[comm.rank()].copy_(tensor.detach());
  wait(comm.all_gather(buffer_of(all, DType::kUInt8)), all);
  return all;
}

}  // namespace replica

void all_reduce(World& world, const torch::Tensor& tensor, const ReduceOptions& options) {
  require(tensor, "all_reduce()");
  const CallName call(world.comm(), name_of("all_reduce", tensor));
  const InPlace place(tensor);
  replica::all_reduce(world.comm(), place.dense(), options);
  place.put_back();
}

void broadcast(World& world, const torch::Tensor& tensor, int root) {
  require(tensor, "broadcast()");
  const CallName call(world.comm(), name_of("broadcast", tensor));
  const InPlace place(tensor);
  wait(world.comm().broadcast(buffer_of(place.dense(), DType::kUInt8), root), place.dense());
  place.put_back();
}

torch::Tensor all_gather(World& world, const torch::Tensor& tensor) {
  require(tensor, "all_gather()");
  const CallName call(world.comm(), name_of("all_gather", tensor));
  return replica::all_gather(world.comm(), tensor);
}

}  // namespace lockstep
