#include "torch/replica/encoding.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "flat/codec_loops.h"
#include "flat/fold.h"
#include "plan/tree.h"
#include "torch/device/device.h"
#include "torch/replica/encoded_reduction.h"
#include "torch/replica/gradient_source.h"

namespace lockstep::replica {
namespace {

static_assert(Codec::kBlock == plan::kBlockElements);

constexpr std::size_t kMostBytes = 16 * Codec::kBlock * sizeof(float);

void check(const DataParallelOptions& options, const plan::Layout& layout) {
  const Codec& codec = *options.codec;
  const auto refuse = [&](const std::string& why) {
    throw BadInput(fmt::format("the codec {} {}", codec.name(), why));
  };
  if (codec.name().empty() || codec.name() == "none")
    throw BadInput("a codec has a name of its own: Codec::name() must not be empty or none");
  if (const std::size_t most = codec.bytes(Codec::kBlock); most == 0 || most > kMostBytes)
    refuse(fmt::format("has blocks of {} bytes: 1 to {} can be", most, kMostBytes));
  if (options.algorithm != Algorithm::kAutomatic && options.algorithm != Algorithm::kDirect)
    refuse(fmt::format("sends gradients in a way of its own: leave out the algorithm {}",
                       name(options.algorithm)));
  if (codec.has_error_feedback() && options.missing_gradient != MissingGradient::kError) {
    refuse(
        "has error feedback, which needs the same parameters in every step: make the model with "
        "MissingGradient::kError");
  }
  for (const plan::Entry& entry : layout.entries()) {
    if (entry.dtype == DType::kFloat32) continue;
    refuse(fmt::format("is for float32 parameters, and {} is {}", entry.name, name(entry.dtype)));
  }
}

template <typename Body>
void for_each_block(plan::BlockRange blocks, const Body& body) {
  constexpr std::int64_t kGrain = 16;
  at::parallel_for(static_cast<std::int64_t>(blocks.begin), static_cast<std::int64_t>(blocks.end),
                   kGrain, [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t block = begin; block < end; ++block)
                       body(static_cast<std::size_t>(block));
                   });
}

float* elements_at(const plan::Layout& layout, std::byte* memory, std::size_t block) {
  return reinterpret_cast<float*>(memory + offset_of(layout, layout.block(block)));
}

}  // namespace

Encoding::Encoding(const DataParallelOptions& options, const plan::Layout& layout)
    : codec_(options.codec), layout_(layout) {
  check(options, layout);
}

void Encoding::take_memory(Comm& comm, int shards) {
  if (shards == shards_) return;
  if (shards_ > 0 && keeps_state()) {
    throw BadInput(fmt::format(
        "the codec {} keeps error feedback of {} shards, and now there are {}: make the model "
        "again",
        codec_->name(), shards_, shards));
  }
  if (keeps_state()) allocate(comm, shards);
  shards_ = shards;
}

void Encoding::check_may_move() const {
  if (shards_ == 0 || !keeps_state()) return;
  throw BadInput(
      fmt::format("the codec {} has error feedback, which does not go to other workers: a job goes "
                  "on from its checkpoint",
                  codec_->name()));
}

BlockEncoding::BlockEncoding(const DataParallelOptions& options, const plan::Layout& layout,
                             Device device, const BytesOf& bytes_of)
    : Encoding(options, layout), device_(device), at_(layout.blocks() + 1) {
  for (std::size_t block = 0; block < layout.blocks(); ++block)
    at_[block + 1] = at_[block] + bytes_of(layout.block(block).count);
}

void BlockEncoding::allocate(Comm& comm, int shards) {
  lost_.emplace(comm, layout().bytes() * (static_cast<std::size_t>(shards) + 1), Copies::kPerHost,
                device_);
}

std::byte* BlockEncoding::lost(int shard) const {
  if (!lost_) return nullptr;
  return lost_->data() + layout().bytes() * static_cast<std::size_t>(shard);
}

HostBlockEncoding::HostBlockEncoding(const DataParallelOptions& options, const plan::Layout& layout)
    : BlockEncoding(options, layout, {},
                    [&](std::size_t elements) { return options.codec->bytes(elements); }) {}

std::unique_ptr<Reduction> HostBlockEncoding::reduction(Reach reach, Comm& comm, Banks& banks,
                                                        const ModelPlan& plan) {
  if (reach == Reach::kMemory) return std::make_unique<OnePassReduction>(comm, banks, plan, this);
  return std::make_unique<EncodedReduction>(comm, banks, *this);
}

void HostBlockEncoding::encode(int shard, std::size_t block, double factor, float* elements,
                               std::byte* bytes) {
  LOCKSTEP_CHECK(shards() > 0, "take_memory() comes before encode()");
  const std::size_t count = layout().block(block).count;
  std::array<float, Codec::kBlock> sent;
  thread_local std::vector<std::byte> own;
  if (bytes == nullptr) {
    own.resize(codec().bytes(count));
    bytes = own.data();
  }
  std::byte* const memory = lost(shard);
  float* const kept = memory == nullptr ? nullptr : elements_at(layout(), memory, block);
  if (kept != nullptr)
    flat::add_scaled(elements, static_cast<float>(factor), kept, sent.data(), count);
  else
    flat::scale(DType::kFloat32, factor, elements, sent.data(), count);
  codec().encode({sent.data(), count}, bytes);
  codec().decode(bytes, {elements, count});
  if (kept != nullptr) flat::subtract(sent.data(), elements, kept, count);
}

void HostBlockEncoding::encode(int shard, plan::BlockRange blocks, double factor, std::byte* memory,
                               std::byte* bytes) {
  for_each_block(blocks, [&](std::size_t block) {
    encode(shard, block, factor, elements_at(layout(), memory, block),
           bytes == nullptr ? nullptr : bytes + this->bytes({blocks.begin, block}));
  });
}

void HostBlockEncoding::decode(std::size_t block, const std::byte* bytes, float* elements) const {
  codec().decode(bytes, {elements, layout().block(block).count});
}

void HostBlockEncoding::decode(plan::BlockRange blocks, const std::byte* bytes,
                               std::byte* memory) const {
  for_each_block(blocks, [&](std::size_t block) {
    decode(block, bytes + this->bytes({blocks.begin, block}), elements_at(layout(), memory, block));
  });
}

std::vector<plan::BlockRange> HostBlockEncoding::parts_of(const plan::Bucket& bucket,
                                                          int workers) const {
  constexpr std::size_t kMessageBlocks = 128;  // 128 KiB in int8
  const plan::BlockRange all = blocks_of(layout(), bucket);
  const std::size_t most = kMessageBlocks * static_cast<std::size_t>(workers);
  std::vector<plan::BlockRange> parts;
  for (std::size_t begin = all.begin; begin < all.end; begin += most)
    parts.push_back({begin, std::min(begin + most, all.end)});
  return parts;
}

plan::BlockRange blocks_of(const plan::Layout& layout, const plan::Bucket& bucket) {
  const plan::Entry& last = layout.entries()[bucket.first_entry + bucket.entries - 1];
  return {layout.entries()[bucket.first_entry].first_block, last.first_block + last.blocks()};
}

plan::BlockRange own_blocks(plan::BlockRange blocks, int worker, int workers) {
  const auto boundary = [&](int number) {
    return blocks.begin +
           blocks.size() * static_cast<std::size_t>(number) / static_cast<std::size_t>(workers);
  };
  return {boundary(worker), boundary(worker + 1)};
}

std::size_t BlockEncoding::busiest(const std::vector<plan::Bucket>& buckets, int shards,
                                   int workers) const {
  std::size_t most = 0;
  for (int worker = 0; worker < workers; ++worker) {
    const auto hosted =
        static_cast<std::size_t>(plan::hosted_shards(worker, workers, shards).size());
    const std::size_t others = static_cast<std::size_t>(shards) - hosted;
    const auto peers = static_cast<std::size_t>(workers) - 1;
    std::size_t sent = 0;
    std::size_t received = 0;
    for (const plan::Bucket& bucket : buckets) {
      for (const plan::BlockRange& part : parts_of(bucket, workers)) {
        const std::size_t own = bytes(own_blocks(part, worker, workers));
        sent += (bytes(part) - own) * hosted + own * peers;
        received += own * others + (bytes(part) - own);
      }
    }
    most = std::max({most, sent, received});
  }
  return most;
}

namespace {

// Of a layout that begins at a byte of the memory.
void share_blocks(Comm& comm, int worker, const FlatMemory& memory, std::size_t begins,
                  const plan::Layout& layout, plan::BlockRange blocks) {
  void* const stream = device::current_stream(memory.device());
  for (const plan::Stretch& part : plan::stretches_of(layout, blocks)) {
    std::byte* const data = memory.data() + begins + offset_of(layout, part);
    comm.broadcast({data, part.count, DType::kFloat32, memory.device(), stream}, worker).wait();
  }
}

}  // namespace

void share_shards(Comm& comm, const FlatMemory& memory, const plan::Layout& layout, int shards) {
  for (int worker = 0; worker < comm.size(); ++worker) {
    const plan::ShardRange hosted = plan::hosted_shards(worker, comm.size(), shards);
    for (int shard = hosted.begin; shard < hosted.end; ++shard) {
      share_blocks(comm, worker, memory, layout.bytes() * static_cast<std::size_t>(shard), layout,
                   {0, layout.blocks()});
    }
  }
}

// Where workers share memory, all of it is there.
void BlockEncoding::complete(Comm& comm, const std::vector<plan::Bucket>& buckets) {
  if (!lost_ || lost_->shared() || comm.size() == 1) return;
  share_shards(comm, *lost_, layout(), shards());
  const std::size_t average_at = layout().bytes() * static_cast<std::size_t>(average());
  for (int worker = 0; worker < comm.size(); ++worker) {
    for (const plan::Bucket& bucket : buckets) {
      for (const plan::BlockRange& part : parts_of(bucket, comm.size()))
        share_blocks(comm, worker, *lost_, average_at, layout(),
                     own_blocks(part, worker, comm.size()));
    }
  }
}

std::vector<NamedTensor> BlockEncoding::state() const {
  std::vector<NamedTensor> all;
  if (!lost_) return all;
  for (int shard = 0; shard <= shards(); ++shard) {
    const std::string of = shard == average() ? "average" : fmt::format("shard{}", shard);
    const std::size_t first = layout().bytes() * static_cast<std::size_t>(shard);
    for (const plan::Entry& entry : layout().entries()) {
      all.push_back({fmt::format("{}/{}", of, entry.name),
                     lost_->as_tensor(torch::kFloat32, first + entry.offset, entry.count)});
    }
  }
  return all;
}

}  // namespace lockstep::replica
