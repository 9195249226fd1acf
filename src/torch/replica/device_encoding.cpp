// For each bucket, on the stream of the reduction:
//
//   encode    each hosted shard, for all owners
//   exchange  every worker gets what all shards have sent of the blocks that it owns
//   average   the sum in the order of the tree, encoded
//   gather    everybody gets all averages, and decodes them into the first bank
//
#include "torch/replica/device_encoding.h"

#include <array>
#include <utility>
#include <vector>

#include "base/check.h"
#include "flat/cuda/handles.h"
#include "flat/device_codec.h"
#include "flat/device_low_rank.h"
#include "plan/tree.h"
#include "torch/replica/device_gradients.h"
#include "torch/replica/device_reduction.h"

namespace lockstep::replica {
namespace {

// Threads:   as DeviceReduction, which calls it. All work is queued on the current stream.
class DeviceBlockEncoding : public BlockEncoding {
 public:
  DeviceBlockEncoding(const DataParallelOptions& options, const plan::Layout& layout,
                      const flat::DeviceFormat& format, Device device)
      : BlockEncoding(options, layout, device,
                      [&](std::size_t elements) { return format.bytes(elements); }),
        kind_(format.kind),
        device_(device),
        table_(flat::codec_blocks(layout, format)) {}

  std::unique_ptr<Reduction> reduction(Reach reach, Comm& comm, Banks& banks,
                                       const ModelPlan& plan) override;
  std::vector<plan::BlockRange> parts_of(const plan::Bucket& bucket, int) const override {
    return {blocks_of(layout(), bucket)};
  }

  int of_shards() const { return shards(); }

  void encode(int shard, plan::BlockRange blocks, double factor, const std::byte* memory,
              std::byte* bytes) const {
    LOCKSTEP_CHECK(shards() > 0, "take_memory() comes before encode()");
    flat::queue_encode(
        {range(blocks), kind_, memory, static_cast<float>(factor), lost(shard), bytes}, stream());
  }
  // `from`: the encoded blocks of all shards, shard by shard.
  void encode_average(plan::BlockRange blocks, const std::byte* from, std::byte* bytes) const {
    flat::queue_average({range(blocks), kind_, from, this->bytes(blocks),
                         static_cast<std::uint32_t>(shards()), lost(average()), bytes},
                        stream());
  }
  void decode(plan::BlockRange blocks, const std::byte* bytes, std::byte* memory) const {
    flat::queue_decode({range(blocks), kind_, bytes, memory}, stream());
  }

 private:
  flat::CodecRange range(plan::BlockRange blocks) const {
    return {table_.data(), blocks, at(blocks.begin)};
  }
  void* stream() const { return device::current_stream(device_); }

  flat::DeviceFormat::Kind kind_;
  Device device_;
  cuda::DeviceArray<flat::CodecBlock> table_;
};

// Encoded bytes of a bucket.
struct Room {
  torch::Tensor sent;      // by owner, then by hosted shard
  torch::Tensor heard;     // of the own blocks, by shard
  torch::Tensor averages;  // of all blocks
};

class EncodedBucket : public StagedBucket {
 public:
  struct Setting {
    Comm& comm;
    const Banks& banks;
    DeviceBlockEncoding& encoding;
    Device device;
  };
  EncodedBucket(Setting setting, Room& room, const plan::Bucket& bucket, const Sharded* sharded,
                double factor)
      : its_(setting),
        room_(room),
        blocks_(blocks_of(setting.encoding.layout(), bucket)),
        sharded_(sharded),
        factor_(factor) {}

  Work begin() override;
  Work go_on() override;
  void finish() override;

 private:
  // At least so many bytes. What was there before is not needed any more.
  std::byte* room(torch::Tensor& bytes, std::size_t count) const;
  Buffer buffer(const torch::Tensor& bytes, std::size_t count) const {
    return {bytes.data_ptr(), count, DType::kUInt8, its_.device,
            device::current_stream(its_.device)};
  }
  plan::BlockRange owned_by(int worker) const {
    return own_blocks(blocks_, worker, its_.comm.size());
  }
  std::size_t bytes(plan::BlockRange blocks, int shards) const {
    return its_.encoding.bytes(blocks) * static_cast<std::size_t>(shards);
  }
  plan::ShardRange hosted_by(int worker) const {
    return plan::hosted_shards(worker, its_.comm.size(), its_.encoding.of_shards());
  }
  Work exchange() const;

  Setting its_;
  Room& room_;
  plan::BlockRange blocks_;
  const Sharded* sharded_;
  double factor_;
};

std::byte* EncodedBucket::room(torch::Tensor& bytes, std::size_t count) const {
  if (!bytes.defined() || bytes.nbytes() < count) bytes = device::memory(its_.device, count);
  return static_cast<std::byte*>(bytes.data_ptr());
}

Work EncodedBucket::begin() {
  const plan::ShardRange hosted = hosted_by(its_.comm.rank());
  std::byte* next = room(room_.sent, bytes(blocks_, hosted.size()));
  for (int owner = 0; owner < its_.comm.size(); ++owner) {
    for (int number = 0; number < hosted.size(); ++number) {
      its_.encoding.encode(hosted.begin + number, owned_by(owner), factor_,
                           bank_of(its_.banks, sharded_, number).memory().data(), next);
      next += bytes(owned_by(owner), 1);
    }
  }
  return its_.comm.size() > 1 ? exchange() : Work();
}

Work EncodedBucket::exchange() const {
  const int workers = its_.comm.size();
  std::vector<std::size_t> counts;
  for (int from = 0; from < workers; ++from) {
    for (int to = 0; to < workers; ++to)
      counts.push_back(bytes(owned_by(to), hosted_by(from).size()));
  }
  const int own = its_.comm.rank();
  const std::size_t heard = bytes(owned_by(own), its_.encoding.of_shards());
  room(room_.heard, heard);
  return its_.comm.all_to_all(buffer(room_.sent, bytes(blocks_, hosted_by(own).size())),
                              buffer(room_.heard, heard), counts);
}

Work EncodedBucket::go_on() {
  const int workers = its_.comm.size();
  const plan::BlockRange own = owned_by(its_.comm.rank());
  std::byte* const averages = room(room_.averages, bytes(blocks_, 1));
  const torch::Tensor& from = workers == 1 ? room_.sent : room_.heard;
  its_.encoding.encode_average(own, static_cast<const std::byte*>(from.data_ptr()),
                               averages + bytes({blocks_.begin, own.begin}, 1));
  if (workers == 1) return {};
  std::vector<std::size_t> counts;
  for (int worker = 0; worker < workers; ++worker) counts.push_back(bytes(owned_by(worker), 1));
  return its_.comm.all_gather(buffer(room_.averages, bytes(blocks_, 1)), counts);
}

void EncodedBucket::finish() {
  its_.encoding.decode(blocks_, static_cast<const std::byte*>(room_.averages.data_ptr()),
                       bank_of(its_.banks, sharded_, 0).memory().data());
}

class EncodedDeviceReduction : public StagedDeviceReduction {
 public:
  EncodedDeviceReduction(Comm& comm, Banks& banks, const plan::Layout& layout, Device device,
                         DeviceBlockEncoding& encoding)
      : StagedDeviceReduction(comm, banks, layout, device), encoding_(encoding) {}

 protected:
  std::unique_ptr<StagedBucket> stage(const plan::Bucket& bucket, const Sharded* sharded,
                                      double factor) override {
    if (sharded == nullptr) encoding_.take_memory(comm_, comm_.size());
    return std::make_unique<EncodedBucket>(
        EncodedBucket::Setting{comm_, banks_, encoding_, device_}, rooms_[next_++ % kBuckets],
        bucket, sharded, factor);
  }

 private:
  DeviceBlockEncoding& encoding_;
  std::array<Room, kBuckets> rooms_;
  std::size_t next_ = 0;
};

std::unique_ptr<Reduction> DeviceBlockEncoding::reduction(Reach, Comm& comm, Banks& banks,
                                                          const ModelPlan& plan) {
  return std::make_unique<EncodedDeviceReduction>(comm, banks, plan.layout, device_, *this);
}

}  // namespace

std::unique_ptr<Encoding> make_device_encoding(const DataParallelOptions& options,
                                               const plan::Layout& layout, Device device) {
  const auto* const known = dynamic_cast<const flat::KnownToDevices*>(options.codec.get());
  if (known == nullptr) return nullptr;
  return std::make_unique<DeviceBlockEncoding>(options, layout, known->on_device(), device);
}

// The scratch memory goes back to the stream's allocator: what is queued later may use it.
void orthonormalise_on_device(const torch::Tensor& factor) {
  const torch::Tensor columns = torch::empty_like(factor, torch::kFloat64);
  flat::queue_orthonormalise({factor.data_ptr<float>(), static_cast<std::uint64_t>(factor.size(0)),
                              static_cast<int>(factor.size(1)), columns.data_ptr<double>()},
                             device::current_stream(device::of(factor)));
}

}  // namespace lockstep::replica
