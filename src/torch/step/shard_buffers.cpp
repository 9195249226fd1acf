#include "torch/step/shard_buffers.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "plan/tree.h"
#include "torch/replica/tensors.h"

namespace lockstep::steps {
namespace {

// The mean over shards, added in the order of the tree. `values` has the bytes of one buffer for each shard. It computes in
// double and rounds once; half types are rounded to float32 on the way.
template <typename T>
void mean_into(const std::vector<const std::byte*>& values, std::size_t count, std::byte* to) {
  std::vector<double> numbers(values.size());
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t shard = 0; shard < values.size(); ++shard) {
      T value;
      std::memcpy(&value, values[shard] + i * sizeof(T), sizeof(T));
      numbers[shard] = static_cast<double>(value);
    }
    const T mean = static_cast<T>(plan::tree_sum(numbers) / static_cast<double>(values.size()));
    std::memcpy(to + i * sizeof(T), &mean, sizeof(T));
  }
}

// In the host's memory, packed as bytes.
class HostBuffers : public ShardBuffers {
 public:
  HostBuffers(std::vector<NamedTensor> buffers, BufferRule rule)
      : buffers_(std::move(buffers)), rule_(rule.rule), shards_(rule.shards) {}

  void begin_step() override;
  void begin_shard() override;
  void end_shard(int shard) override;
  void end_step(Comm& comm, const std::vector<int>& ran) override;

 private:
  std::vector<std::byte> first_shards(Comm& comm);
  std::vector<std::byte> mean_of_shards(Comm& comm);

  std::vector<NamedTensor> buffers_;
  ShardBufferRule rule_;
  int shards_;
  std::vector<std::byte> before_;
  bool changed_ = false;                         // a shard of this step has begun
  std::map<int, std::vector<std::byte>> after_;  // by hosted shard
};

void HostBuffers::begin_step() {
  if (!buffers_.empty()) before_ = replica::pack(buffers_);
  after_.clear();
  changed_ = false;
}

void HostBuffers::begin_shard() {
  if (!buffers_.empty() && std::exchange(changed_, true)) replica::unpack(before_, buffers_);
}

void HostBuffers::end_shard(int shard) {
  if (buffers_.empty()) return;
  const bool needed = shard == 0 || rule_ == ShardBufferRule::kMean;
  if (needed) after_[shard] = replica::pack(buffers_);
}

void HostBuffers::end_step(Comm& comm, const std::vector<int>&) {
  if (buffers_.empty()) return;
  const bool mean = rule_ == ShardBufferRule::kMean;
  replica::unpack(mean ? mean_of_shards(comm) : first_shards(comm), buffers_);
}

// Rank 0 hosts the first shard, which has samples in every step.
std::vector<std::byte> HostBuffers::first_shards(Comm& comm) {
  std::vector<std::byte> next = comm.rank() == 0 ? after_.at(0) : before_;
  comm.broadcast({next.data(), next.size(), DType::kUInt8}, 0).wait();
  return next;
}

// Each worker fills in the bytes of its shards, and the others have 0 there: an all-reduce brings all bytes to all.
std::vector<std::byte> HostBuffers::mean_of_shards(Comm& comm) {
  const std::size_t each = before_.size() + 1;  // the last byte: the shard has run
  std::vector<std::byte> all(each * static_cast<std::size_t>(shards_));
  for (const auto& [shard, bytes] : after_) {
    std::byte* at = all.data() + each * static_cast<std::size_t>(shard);
    std::copy(bytes.begin(), bytes.end(), at);
    at[each - 1] = std::byte{1};
  }
  comm.all_reduce({all.data(), all.size(), DType::kUInt8}).wait();
  std::vector<const std::byte*> ran;
  for (std::size_t at = 0; at < all.size(); at += each) {
    if (all[at + each - 1] != std::byte{0}) ran.push_back(all.data() + at);
  }
  // Buffers that are no numbers to average, such as counters, are the first shard's.
  std::vector<std::byte> next(ran.front(), ran.front() + before_.size());
  std::size_t offset = 0;
  for (const auto& [name, tensor] : buffers_) {
    const auto count = static_cast<std::size_t>(tensor.numel());
    if (tensor.scalar_type() == torch::kFloat32) mean_into<float>(ran, count, next.data() + offset);
    if (tensor.scalar_type() == torch::kFloat64)
      mean_into<double>(ran, count, next.data() + offset);
    if (tensor.scalar_type() == torch::kFloat16)
      mean_into<c10::Half>(ran, count, next.data() + offset);
    if (tensor.scalar_type() == torch::kBFloat16)
      mean_into<c10::BFloat16>(ran, count, next.data() + offset);
    for (const std::byte*& shard : ran) shard += tensor.nbytes();
    offset += tensor.nbytes();
  }
  return next;
}

}  // namespace

std::unique_ptr<ShardBuffers> make_host_buffers(std::vector<NamedTensor> buffers, BufferRule rule) {
  return std::make_unique<HostBuffers>(std::move(buffers), rule);
}

}  // namespace lockstep::steps
