#include "torch/replica/buffer_sync.h"

#include <algorithm>
#include <cstring>

#include "torch/replica/collectives.h"
#include "torch/replica/tensors.h"

namespace lockstep::replica {

void HostBufferSync::start(Comm& comm, const control::Presence& presence) {
  if (comm.size() == 1 || buffers_.empty()) return;
  staging_ = pack(buffers_);
  work_ = comm.broadcast({staging_.data(), staging_.size(), DType::kUInt8}, presence.first);
}

void HostBufferSync::finish(Comm& comm, const control::Presence& presence) {
  if (comm.size() == 1 || buffers_.empty()) return;
  work_.wait();
  if (comm.rank() != presence.first) unpack(staging_, buffers_);
}

bool SharedBufferSync::fits() const {
  std::size_t bytes = 0;
  for (const NamedTensor& buffer : buffers_) bytes += buffer.tensor.nbytes();
  return bytes == memory_.bytes();
}

void SharedBufferSync::start(Comm& comm, const control::Presence& presence) {
  if (!fits()) return messages_.start(comm, presence);
  if (comm.rank() != presence.first) return;
  const auto packed = pack(buffers_);
  std::memcpy(memory_.data(), packed.data(), packed.size());
}

void SharedBufferSync::finish(Comm& comm, const control::Presence& presence) {
  if (!fits()) return messages_.finish(comm, presence);
  if (comm.rank() != presence.first)
    unpack({memory_.data(), memory_.data() + memory_.bytes()}, buffers_);
}

MeanBufferSync::MeanBufferSync(const std::vector<NamedTensor>& buffers,
                               std::unique_ptr<BufferSync> source)
    : source_(std::move(source)) {
  for (const NamedTensor& buffer : buffers) {
    const torch::Tensor& tensor = buffer.tensor;
    if (!tensor.is_floating_point()) continue;
    const auto same = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& kind) {
      return kind.buffers.front().scalar_type() == tensor.scalar_type();
    });
    (same == kinds_.end() ? kinds_.emplace_back() : *same).buffers.push_back(tensor);
  }
}

void MeanBufferSync::start(Comm& comm, const control::Presence& presence) {
  if (comm.size() == 1) return;
  torch::NoGradGuard no_grad;
  for (Kind& kind : kinds_) {
    std::vector<torch::Tensor> parts;
    for (const torch::Tensor& buffer : kind.buffers) parts.push_back(buffer.detach().reshape({-1}));
    kind.flat = torch::cat(parts);
    if (!presence.here) kind.flat.zero_();
    kind.work = start_all_reduce(comm, kind.flat, {.factor = 1.0 / presence.count});
  }
  source_->start(comm, presence);
}

void MeanBufferSync::finish(Comm& comm, const control::Presence& presence) {
  if (comm.size() == 1) return;
  torch::NoGradGuard no_grad;
  source_->finish(comm, presence);
  for (Kind& kind : kinds_) {
    finish_all_reduce(kind.work, kind.flat);
    std::int64_t at = 0;
    for (const torch::Tensor& buffer : kind.buffers) {
      buffer.data().copy_(kind.flat.narrow(0, at, buffer.numel()).view(buffer.sizes()));
      at += buffer.numel();
    }
  }
}

}  // namespace lockstep::replica
