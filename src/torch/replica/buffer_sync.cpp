#include "torch/replica/buffer_sync.h"

#include <cstring>

#include "torch/replica/tensors.h"

namespace lockstep::replica {

void HostBufferSync::start(Comm& comm) {
  if (comm.size() == 1 || buffers_.empty()) return;
  staging_ = pack(buffers_);
  work_ = comm.broadcast({staging_.data(), staging_.size(), DType::kUInt8}, 0);
}

void HostBufferSync::finish(Comm& comm) {
  if (comm.size() == 1 || buffers_.empty()) return;
  work_.wait();
  if (comm.rank() != 0) unpack(staging_, buffers_);
}

bool SharedBufferSync::fits() const {
  std::size_t bytes = 0;
  for (const NamedTensor& buffer : buffers_) bytes += buffer.tensor.nbytes();
  return bytes == memory_.bytes();
}

void SharedBufferSync::start(Comm& comm) {
  if (!fits()) return messages_.start(comm);
  if (comm.rank() != 0) return;
  const auto packed = pack(buffers_);
  std::memcpy(memory_.data(), packed.data(), packed.size());
}

void SharedBufferSync::finish(Comm& comm) {
  if (!fits()) return messages_.finish(comm);
  if (comm.rank() != 0) unpack({memory_.data(), memory_.data() + memory_.bytes()}, buffers_);
}

}  // namespace lockstep::replica
