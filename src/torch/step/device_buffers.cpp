#include <map>

#include "torch/device/device.h"
#include "torch/step/shard_buffers.h"

namespace lockstep::steps {
namespace {

// The sum over tensors, two neighbours at a time. That is the order of the tree.
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

// On a GPU: all buffers lie in one memory, and everything is queued on the current stream.
class DeviceBuffers : public ShardBuffers {
 public:
  DeviceBuffers(const ModelView& model, BufferRule rule)
      : buffers_(model.buffers()),
        rule_(rule.rule),
        shards_(rule.shards),
        bytes_(model.buffer_bytes()) {}

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
  torch::Tensor next = rows[ran.front()].clone();  // counters are the first shard's
  for (const auto& [name, tensor] : buffers_) {
    if (!tensor.is_floating_point() || tensor.numel() == 0) continue;
    const auto first =
        static_cast<std::byte*>(tensor.data_ptr()) - static_cast<std::byte*>(bytes_.data_ptr());
    const auto part = [&, &buffer = tensor](const torch::Tensor& row) {
      const auto end = first + static_cast<std::int64_t>(buffer.nbytes());
      return row.slice(0, first, end).view(buffer.scalar_type());
    };
    std::vector<torch::Tensor> values;
    values.reserve(ran.size());
    for (const int shard : ran) values.push_back(part(rows[shard]).to(torch::kFloat64));
    const auto count = static_cast<double>(ran.size());
    part(next).copy_(tree_sum(std::move(values)) / count);
  }
  return next;
}

}  // namespace

std::unique_ptr<ShardBuffers> make_device_buffers(const ModelView& model, BufferRule rule) {
  return std::make_unique<DeviceBuffers>(model, rule);
}

}  // namespace lockstep::steps
