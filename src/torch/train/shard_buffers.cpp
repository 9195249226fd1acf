#include "torch/train/shard_buffers.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "plan/tree.h"
#include "torch/device/device.h"
#include "torch/replica/tensors.h"

namespace lockstep::train {
namespace {

// The mean over `values`, each a buffer's bytes of one shard, in the order of the tree; in double, rounded once (half types: by way of
// float32).
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

// In the host's memory, as bytes.
class HostBuffers : public ShardBuffers {
 public:
  HostBuffers(std::vector<NamedTensor> buffers, ShardBufferRule rule, int shards)
      : buffers_(std::move(buffers)), rule_(rule), shards_(shards) {}

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
  std::map<int, std::vector<std::byte>> after_;  // by hosted shard
};

void HostBuffers::begin_step() {
  if (!buffers_.empty()) before_ = replica::pack(buffers_);
  after_.clear();
}

void HostBuffers::begin_shard() {
  if (!buffers_.empty() && !after_.empty()) replica::unpack(before_, buffers_);
}

void HostBuffers::end_shard(int shard) {
  if (buffers_.empty()) return;
  // One that is not needed still says that the buffers have changed.
  const bool needed = shard == 0 || rule_ == ShardBufferRule::kMean;
  after_[shard] = needed ? replica::pack(buffers_) : std::vector<std::byte>{};
}

void HostBuffers::end_step(Comm& comm, const std::vector<int>&) {
  if (buffers_.empty()) return;
  const bool mean = rule_ == ShardBufferRule::kMean;
  replica::unpack(mean ? mean_of_shards(comm) : first_shards(comm), buffers_);
}

// The first worker hosts the first shard, which has a sample whenever any has.
std::vector<std::byte> HostBuffers::first_shards(Comm& comm) {
  std::vector<std::byte> next = comm.rank() == 0 ? after_.at(0) : before_;
  comm.broadcast({next.data(), next.size(), DType::kUInt8}, 0).wait();
  return next;
}

// Adding bytes to zeros moves them.
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
  std::vector<std::byte> next(ran.front(), ran.front() + before_.size());  // counters: the first's
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

// The sum over tensors, two neighbours at a time: the tree's order.
torch::Tensor tree_sum(std::vector<torch::Tensor> values) {
  while (values.size() > 1) {
    std::vector<torch::Tensor> sums;
    for (std::size_t i = 0; i + 1 < values.size(); i += 2)
      sums.push_back(values[i] + values[i + 1]);
    if (values.size() % 2 != 0) sums.push_back(values.back());
    values = std::move(sums);
  }
  return values.front();
}

// On a GPU: all of them lie in one memory, and whatever is done is queued.
class DeviceBuffers : public ShardBuffers {
 public:
  DeviceBuffers(const replica::Replicated& model, ShardBufferRule rule, int shards)
      : buffers_(model.model().buffers), rule_(rule), shards_(shards) {
    const auto& memory = model.buffer_memory();
    if (memory) bytes_ = memory->as_tensor(torch::kUInt8, 0, memory->bytes());
  }

  void begin_step() override {
    if (bytes_.defined()) before_ = bytes_.clone();
    after_.clear();
  }
  void begin_shard() override {
    if (bytes_.defined() && !after_.empty()) bytes_.copy_(before_);
  }
  void end_shard(int shard) override {
    if (!bytes_.defined()) return;
    const bool needed = shard == 0 || rule_ == ShardBufferRule::kMean;
    after_[shard] = needed ? bytes_.clone() : torch::Tensor();
  }
  void end_step(Comm& comm, const std::vector<int>& ran) override;

 private:
  Buffer wire(const torch::Tensor& bytes) const {
    const Device device = device::of(bytes);
    return {bytes.data_ptr(), static_cast<std::size_t>(bytes.numel()), DType::kUInt8, device,
            device::current_stream(device)};
  }
  torch::Tensor mean_of(const torch::Tensor& rows, const std::vector<int>& ran) const;

  std::vector<NamedTensor> buffers_;
  ShardBufferRule rule_;
  int shards_;
  torch::Tensor bytes_;  // of all buffers
  torch::Tensor before_;
  std::map<int, torch::Tensor> after_;  // by hosted shard
};

void DeviceBuffers::end_step(Comm& comm, const std::vector<int>& ran) {
  if (!bytes_.defined()) return;
  torch::NoGradGuard no_grad;
  void* const stream = device::current_stream(device::of(bytes_));
  if (rule_ == ShardBufferRule::kFirstShard) {
    if (comm.rank() == 0) bytes_.copy_(after_.at(0));
    if (comm.size() > 1) comm.broadcast(wire(bytes_), 0).wait_on(stream);
    return;
  }
  torch::Tensor rows = torch::zeros({shards_, bytes_.numel()}, bytes_.options());
  for (const auto& [shard, bytes] : after_) rows[shard].copy_(bytes);
  if (comm.size() > 1) comm.all_reduce(wire(rows)).wait_on(stream);
  bytes_.copy_(mean_of(rows, ran));
}

torch::Tensor DeviceBuffers::mean_of(const torch::Tensor& rows, const std::vector<int>& ran) const {
  torch::Tensor next = rows[ran.front()].clone();  // counters: the first's
  for (const auto& [name, tensor] : buffers_) {
    if (!tensor.is_floating_point() || tensor.numel() == 0) continue;
    const auto first =
        static_cast<std::byte*>(tensor.data_ptr()) - static_cast<std::byte*>(bytes_.data_ptr());
    const auto part = [&](const torch::Tensor& row) {
      const auto end = first + static_cast<std::int64_t>(tensor.nbytes());
      return row.slice(0, first, end).view(tensor.scalar_type());
    };
    std::vector<torch::Tensor> values;
    for (const int shard : ran) values.push_back(part(rows[shard]).to(torch::kFloat64));
    const auto count = static_cast<double>(ran.size());
    part(next).copy_(tree_sum(std::move(values)) / count);
  }
  return next;
}

}  // namespace

std::unique_ptr<ShardBuffers> make_shard_buffers(const replica::Replicated& model,
                                                 ShardBufferRule rule, int shards) {
  if ((model.device().kind != DeviceKind::kCpu))
    return std::make_unique<DeviceBuffers>(model, rule, shards);
  return std::make_unique<HostBuffers>(model.model().buffers, rule, shards);
}

}  // namespace lockstep::train
