// For each bucket, on the stream of the reduction:
//
//   encode    each hosted shard, for all owners
//   exchange  every worker gets what all shards have sent of the blocks that it owns
//   average   the sum in the order of the tree, encoded
//   gather    everybody gets all averages, and decodes them into the first bank
//
// The average of a bucket is queued when the exchange of the next one is: the host waits there until all workers have called the
// exchange, which most have by then.
#include "torch/replica/device_encoding.h"

#include <array>
#include <deque>
#include <utility>

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

  void encode(int shard, plan::BlockRange blocks, double factor, const std::byte* memory,
              std::byte* bytes) const {
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

class EncodedDeviceReduction : public DeviceReduction {
 public:
  EncodedDeviceReduction(Comm& comm, Banks& banks, const plan::Layout& layout, Device device,
                         DeviceBlockEncoding& encoding)
      : DeviceReduction(comm, banks, layout, device), encoding_(encoding) {}

  void wait(Met met) override;

 protected:
  void bring(const plan::Bucket& bucket, const Sharded* sharded) override;
  Work queue(const plan::Bucket& bucket, const Sharded* sharded,
             const ReduceOptions& rule) override;

 private:
  // Encoded bytes, for the largest bucket so far.
  struct Room {
    torch::Tensor sent;      // by owner, then by hosted shard
    torch::Tensor heard;     // of the own blocks, by shard
    torch::Tensor averages;  // of all blocks
  };
  // A bucket on its way.
  struct Flight {
    plan::BlockRange blocks;
    std::byte* result = nullptr;  // the memory of its averages
    Room* room = nullptr;
    Work exchanged;
    Work gathered;
    bool averaged = false;
  };
  static constexpr std::size_t kFlights = 2;  // at a time

  std::byte* at_least(torch::Tensor& bytes, std::size_t count) const;
  static std::byte* data(const torch::Tensor& bytes) {
    return static_cast<std::byte*>(bytes.data_ptr());
  }
  Buffer buffer(std::byte* bytes, std::size_t count) const {
    return {bytes, count, DType::kUInt8, device_, device::current_stream(device_)};
  }
  plan::BlockRange blocks_of(const Flight& flight, int worker) const {
    return own_blocks(flight.blocks, worker, comm_.size());
  }
  void encode(Flight& flight, const Sharded* sharded, double factor);
  void exchange(Flight& flight);
  void average(Flight& flight);
  void finish(const Flight& flight);
  void finish_first();

  DeviceBlockEncoding& encoding_;
  int shards_ = 0;  // of the run under way
  std::array<Room, kFlights> rooms_;
  std::size_t next_room_ = 0;
  std::deque<Flight> flights_;
};

std::unique_ptr<Reduction> DeviceBlockEncoding::reduction(Reach, Comm& comm, Banks& banks,
                                                          const ModelPlan& plan) {
  return std::make_unique<EncodedDeviceReduction>(comm, banks, plan.layout, device_, *this);
}

void EncodedDeviceReduction::bring(const plan::Bucket& bucket, const Sharded*) {
  static_cast<DeviceGradients&>(banks_.in_use()).bring(bucket);
}

Work EncodedDeviceReduction::queue(const plan::Bucket& bucket, const Sharded* sharded,
                                   const ReduceOptions& rule) {
  bring(bucket, sharded);
  shards_ = sharded != nullptr ? sharded->shards : comm_.size();
  if (sharded == nullptr) encoding_.take_memory(comm_, shards_);
  if (flights_.size() == kFlights) finish_first();
  Flight& flight = flights_.emplace_back();
  flight.blocks = replica::blocks_of(encoding_.layout(), bucket);
  flight.result = banks_.front().memory().data();
  flight.room = &rooms_[next_room_++ % kFlights];
  encode(flight, sharded, rule.factor);
  exchange(flight);
  if (flights_.size() > 1) average(flights_[flights_.size() - 2]);
  return flight.exchanged;
}

std::byte* EncodedDeviceReduction::at_least(torch::Tensor& bytes, std::size_t count) const {
  if (!bytes.defined() || bytes.nbytes() < count) {
    const auto options = torch::TensorOptions().dtype(torch::kUInt8).device(torch::Device(device_));
    bytes = torch::empty({static_cast<std::int64_t>(count)}, options);
  }
  return data(bytes);
}

void EncodedDeviceReduction::encode(Flight& flight, const Sharded* sharded, double factor) {
  const plan::ShardRange hosted = plan::hosted_shards(comm_.rank(), comm_.size(), shards_);
  std::byte* next = at_least(
      flight.room->sent, encoding_.bytes(flight.blocks) * static_cast<std::size_t>(hosted.size()));
  for (int owner = 0; owner < comm_.size(); ++owner) {
    const plan::BlockRange blocks = blocks_of(flight, owner);
    for (int number = 0; number < hosted.size(); ++number) {
      const FlatGradients& bank = sharded == nullptr
                                      ? banks_.front()
                                      : banks_.at(sharded->held[static_cast<std::size_t>(number)]);
      encoding_.encode(hosted.begin + number, blocks, factor, bank.memory().data(), next);
      next += encoding_.bytes(blocks);
    }
  }
}

void EncodedDeviceReduction::exchange(Flight& flight) {
  if (comm_.size() == 1) return;
  std::vector<std::size_t> counts;
  for (int from = 0; from < comm_.size(); ++from) {
    const int hosted = plan::hosted_shards(from, comm_.size(), shards_).size();
    for (int to = 0; to < comm_.size(); ++to)
      counts.push_back(encoding_.bytes(blocks_of(flight, to)) * static_cast<std::size_t>(hosted));
  }
  const auto hosted = plan::hosted_shards(comm_.rank(), comm_.size(), shards_).size();
  const std::size_t sent = encoding_.bytes(flight.blocks) * static_cast<std::size_t>(hosted);
  const std::size_t heard =
      encoding_.bytes(blocks_of(flight, comm_.rank())) * static_cast<std::size_t>(shards_);
  flight.exchanged = comm_.all_to_all(buffer(data(flight.room->sent), sent),
                                      buffer(at_least(flight.room->heard, heard), heard), counts);
}

void EncodedDeviceReduction::average(Flight& flight) {
  if (flight.averaged) return;
  flight.averaged = true;
  flight.exchanged.wait_on(device::current_stream(device_));
  const plan::BlockRange own = blocks_of(flight, comm_.rank());
  std::byte* const averages = at_least(flight.room->averages, encoding_.bytes(flight.blocks));
  const torch::Tensor& from = comm_.size() == 1 ? flight.room->sent : flight.room->heard;
  encoding_.encode_average(own, data(from),
                           averages + encoding_.bytes({flight.blocks.begin, own.begin}));
  if (comm_.size() == 1) return;
  std::vector<std::size_t> counts;
  for (int worker = 0; worker < comm_.size(); ++worker)
    counts.push_back(encoding_.bytes(blocks_of(flight, worker)));
  flight.gathered = comm_.all_gather(buffer(averages, encoding_.bytes(flight.blocks)), counts);
}

void EncodedDeviceReduction::finish(const Flight& flight) {
  flight.gathered.wait_on(device::current_stream(device_));
  encoding_.decode(flight.blocks, data(flight.room->averages), flight.result);
}

void EncodedDeviceReduction::finish_first() {
  average(flights_.front());
  finish(flights_.front());
  flights_.pop_front();
}

void EncodedDeviceReduction::wait(Met met) {
  {
    const device::SideStream::Scope scope(side_, device::SideStream::After::kGoesOn);
    while (!flights_.empty()) finish_first();
  }
  DeviceReduction::wait(met);
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
