#include "torch/step/kept_state.h"

#include "plan/tree.h"
#include "torch/device/device.h"
#include "torch/replica/tensors.h"

namespace lockstep::steps {
namespace {

constexpr std::size_t kAlignment = 64;

torch::Tensor elements_of(const torch::Tensor& bytes, torch::ScalarType type, std::size_t offset,
                          std::size_t count) {
  const auto length = static_cast<std::int64_t>(count * c10::elementSize(type));
  return bytes.narrow(0, static_cast<std::int64_t>(offset), length).view(type);
}

}  // namespace

KeptState::KeptState(const std::vector<torch::Tensor>& like, int shards, Device device)
    : device_(device), shards_(shards) {
  const Device host;
  for (const torch::Tensor& tensor : like) {
    const bool apart = device != host && device::of(tensor) == host;
    std::size_t& bytes = apart ? bytes_apart_ : bytes_;
    places_.push_back({tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(),
                       static_cast<std::size_t>(tensor.numel()), bytes, apart});
    bytes += (tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
}

// Where workers share memory, one of them fills it. The others keep the memory of before until it has: if it is lost meanwhile,
// they have the values.
void KeptState::take_memory(replica::Parts& parts, const std::vector<torch::Tensor>& first,
                            bool goes_on) {
  const auto twice = 2 * static_cast<std::size_t>(shards_);
  const Memory memory{
      replica::FlatMemory(parts.host(), twice * bytes_ + kAlignment, replica::Copies::kPerHost,
                          device_),
      torch::zeros({static_cast<std::int64_t>(twice * bytes_apart_)}, torch::kUInt8)};
  is_written_here_ = !memory.flat.shared() || parts.host().rank() == parts.source_on_host();
  if (is_written_here_) fill(memory, first, goes_on);
  parts.comm.barrier().wait();
  const bool all_here = memory.flat.shared() && parts.host().size() == parts.comm.size();
  memory_ = memory;
  is_spread_ = !all_here && parts.comm.size() > 1;
  current_ = 0;
}

void KeptState::fill(const Memory& memory, const std::vector<torch::Tensor>& first,
                     bool goes_on) const {
  const torch::NoGradGuard no_grad;
  const auto copy = [](const std::vector<torch::Tensor>& from,
                       const std::vector<torch::Tensor>& to) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  };
  for (int shard = 0; shard < shards_; ++shard) {
    copy(memory_ ? before(shard) : first, tensors(memory, 0, shard));
    if (goes_on) copy(after(shard), tensors(memory, 1, shard));
  }
}

std::vector<torch::Tensor> KeptState::tensors(const Memory& memory, int which, int shard) const {
  const auto number = static_cast<std::size_t>(which * shards_ + shard);
  std::vector<torch::Tensor> all;
  for (const Place& place : places_) {
    const std::size_t at = number * (place.apart ? bytes_apart_ : bytes_) + place.first;
    const torch::Tensor flat = place.apart
                                   ? elements_of(memory.apart, place.type, at, place.elements)
                                   : memory.flat.as_tensor(place.type, at, place.elements);
    all.push_back(flat.as_strided(place.sizes, place.strides));
  }
  return all;
}

void KeptState::complete(Comm& comm) {
  for (int worker = 0; worker < comm.size(); ++worker) {
    const plan::ShardRange hosted = plan::hosted_shards(worker, comm.size(), shards_);
    for (int shard = hosted.begin; shard < hosted.end; ++shard) {
      std::vector<NamedTensor> of_shard;
      for (const torch::Tensor& tensor : before(shard)) of_shard.push_back({"", tensor});
      replica::copy_from(comm, worker, of_shard);
    }
  }
}

}  // namespace lockstep::steps
