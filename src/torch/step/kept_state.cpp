#include "torch/step/kept_state.h"

#include "plan/tree.h"
#include "torch/replica/tensors.h"

namespace lockstep::steps {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

KeptState::KeptState(const std::vector<torch::Tensor>& like, int shards) : shards_(shards) {
  for (const torch::Tensor& tensor : like) {
    places_.push_back({tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(),
                       static_cast<std::size_t>(tensor.numel()), bytes_});
    bytes_ += (tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
}

// Where workers share memory, one of them fills it. The others keep the memory of before until it has: if it is lost meanwhile,
// they have the values.
void KeptState::take_memory(replica::Parts& parts, const std::vector<torch::Tensor>& first) {
  const std::size_t half = bytes_ * static_cast<std::size_t>(shards_);
  const replica::FlatMemory memory(parts.host(), 2 * half + kAlignment, replica::Copies::kPerHost,
                                   parts.device());
  is_written_here_ = !memory.shared() || parts.host().rank() == parts.source_on_host();
  if (is_written_here_) {
    const torch::NoGradGuard no_grad;
    if (memory_) {
      const auto from = static_cast<std::size_t>(current_) * half;
      memory.as_tensor(torch::kUInt8, 0, half).copy_(memory_->as_tensor(torch::kUInt8, from, half));
    }
    for (int shard = 0; shard < shards_ && !memory_; ++shard) {
      const auto to = tensors(memory, 0, shard);
      for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(first[i]);
    }
  }
  parts.comm.barrier().wait();
  const bool all_here = memory.shared() && parts.host().size() == parts.comm.size();
  memory_ = memory;
  is_spread_ = !all_here && parts.comm.size() > 1;
  current_ = 0;
}

std::vector<torch::Tensor> KeptState::tensors(const replica::FlatMemory& memory, int which,
                                              int shard) const {
  const std::size_t at = bytes_ * static_cast<std::size_t>(which * shards_ + shard);
  std::vector<torch::Tensor> all;
  for (const Place& place : places_) {
    all.push_back(memory.as_tensor(place.type, at + place.first, place.elements)
                      .as_strided(place.sizes, place.strides));
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
