// Codecs on a device. A thread has four neighbouring elements of a block, and all threads of a block of threads together have one
// block of the layout.
#include "flat/cuda/runtime.h"
#include "flat/device_codec.h"
#include "flat/element.h"
#include "flat/tree_program.h"
#include "flat/tree_sum_element.h"

namespace lockstep::flat {
namespace {

using element::bits_of, element::float_of, element::Pack, element::Stored;
using Kind = DeviceFormat::Kind;

constexpr unsigned kEach = 4;
constexpr unsigned kThreads = plan::kBlockElements / kEach;
constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xffffffffU;
constexpr std::uint32_t kMagnitude = 0x7fffffffU;

// The elements of a thread; 0 behind the last of the block.
struct Four {
  float at[kEach];
};

__device__ unsigned first_element() {
  return threadIdx.x * kEach;
}

__device__ Four load(const std::byte* memory, const CodecBlock& block) {
  const auto* const elements = reinterpret_cast<const float*>(memory + block.first);
  const unsigned first = first_element();
  Four four = {};
  if (first + kEach <= block.count) {
    const auto pack = reinterpret_cast<const Pack<float, kEach>*>(elements)[threadIdx.x];
    for (unsigned i = 0; i < kEach; ++i) four.at[i] = pack.at[i];
  } else {
    for (unsigned i = 0; i < kEach; ++i)
      if (first + i < block.count) four.at[i] = elements[first + i];
  }
  return four;
}

__device__ void store(const Four& four, std::byte* memory, const CodecBlock& block) {
  auto* const elements = reinterpret_cast<float*>(memory + block.first);
  const unsigned first = first_element();
  if (first + kEach <= block.count) {
    Pack<float, kEach> pack;
    for (unsigned i = 0; i < kEach; ++i) pack.at[i] = four.at[i];
    reinterpret_cast<Pack<float, kEach>*>(elements)[threadIdx.x] = pack;
  } else {
    for (unsigned i = 0; i < kEach; ++i)
      if (first + i < block.count) elements[first + i] = four.at[i];
  }
}

// What the threads of a block share. Nobody writes to a member before a barrier that stands behind its last read.
struct Shared {
  std::uint32_t counts[2][kWarps];
  double sums[2][kWarps];
  float elements[plan::kBlockElements];
};

// The largest value, and the sum, over all threads.
__device__ std::uint32_t largest_of_all(std::uint32_t value, Shared& shared) {
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2)
    value = max(value, __shfl_xor_sync(kAll, value, distance));
  if (threadIdx.x % kWarp == 0) shared.counts[0][threadIdx.x / kWarp] = value;
  __syncthreads();
  for (unsigned warp = 0; warp < kWarps; ++warp) value = max(value, shared.counts[0][warp]);
  return value;
}

__device__ double sum_in_warp(double value) {
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2)
    value = element::add(value, __shfl_xor_sync(kAll, value, distance));
  return value;
}

__device__ double sum_of_warps(const double* sums) {
  double all = 0;
  for (unsigned warp = 0; warp < kWarps; ++warp) all = element::add(all, sums[warp]);
  return all;
}

// With `turn` 0 and 1 by turns, one barrier is enough.
__device__ std::uint32_t count_of_all(std::uint32_t count, unsigned turn, Shared& shared) {
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2)
    count += __shfl_xor_sync(kAll, count, distance);
  if (threadIdx.x % kWarp == 0) shared.counts[turn][threadIdx.x / kWarp] = count;
  __syncthreads();
  std::uint32_t all = 0;
  for (unsigned warp = 0; warp < kWarps; ++warp) all += shared.counts[turn][warp];
  return all;
}

// The sum over all threads before this one.
__device__ std::uint32_t count_before(std::uint32_t count, unsigned turn, Shared& shared) {
  const unsigned lane = threadIdx.x % kWarp;
  std::uint32_t upto = count;
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const std::uint32_t before = __shfl_up_sync(kAll, upto, distance);
    if (lane >= distance) upto += before;
  }
  if (lane == kWarp - 1) shared.counts[turn][threadIdx.x / kWarp] = upto;
  __syncthreads();
  std::uint32_t all = upto - count;
  for (unsigned warp = 0; warp < threadIdx.x / kWarp; ++warp) all += shared.counts[turn][warp];
  return all;
}

// Each format has encode(), which writes the bytes of a block and returns what they decode to, and decode(). All threads call
// them. They may write behind the last element, up to the next multiple of 8 bytes.

template <typename Half>
struct HalfFormat {
  using Halves = Pack<Half, kEach>;
  __device__ static Four encode(const Four& from, const CodecBlock& block, std::byte* bytes,
                                Shared&) {
    Halves halves;
    Four decoded;
    for (unsigned i = 0; i < kEach; ++i) {
      halves.at[i] = Stored<Half>::store(from.at[i]);
      decoded.at[i] = Stored<Half>::load(halves.at[i]);
    }
    if (first_element() < block.count) reinterpret_cast<Halves*>(bytes)[threadIdx.x] = halves;
    return decoded;
  }
  __device__ static Four decode(const std::byte* bytes, const CodecBlock& block, Shared&) {
    Four four = {};
    if (first_element() >= block.count) return four;
    const Halves halves = reinterpret_cast<const Halves*>(bytes)[threadIdx.x];
    for (unsigned i = 0; i < kEach; ++i) four.at[i] = Stored<Half>::load(halves.at[i]);
    return four;
  }
};

// As in flat/codecs.cpp.
struct Int8Format {
  using Bytes = Pack<std::int8_t, kEach>;
  __device__ static Four encode(const Four& from, const CodecBlock& block, std::byte* bytes,
                                Shared& shared) {
    constexpr float kMost = 127;
    constexpr float kLeast = 0x1p-100F;
    constexpr float kShift = 0x1.8p23F;
    constexpr std::uint32_t kInfinity = 0x7f800000U;
    std::uint32_t bits = 0;
    for (unsigned i = 0; i < kEach; ++i) bits = max(bits, bits_of(from.at[i]) & kMagnitude);
    bits = largest_of_all(bits, shared);
    const float largest = float_of(bits);
    const float unit = largest < kLeast ? 0.0F : element::divide(largest, kMost);
    const float factor = element::divide(kMost, largest);
    Bytes all;
    Four decoded;
    for (unsigned i = 0; i < kEach; ++i) {
      const float shifted = element::add(element::multiply(from.at[i], factor), kShift);
      all.at[i] = static_cast<std::int8_t>(bits_of(shifted));
      if (bits >= kInfinity) all.at[i] = 1;
      if (largest < kLeast) all.at[i] = 0;
      decoded.at[i] = element::multiply(static_cast<float>(all.at[i]), unit);
    }
    if (threadIdx.x == 0) *reinterpret_cast<float*>(bytes) = unit;
    if (first_element() < block.count)
      reinterpret_cast<Bytes*>(bytes + sizeof(float))[threadIdx.x] = all;
    return decoded;
  }
  __device__ static Four decode(const std::byte* bytes, const CodecBlock& block, Shared&) {
    Four four = {};
    if (first_element() >= block.count) return four;
    const float unit = *reinterpret_cast<const float*>(bytes);
    const Bytes all = reinterpret_cast<const Bytes*>(bytes + sizeof(float))[threadIdx.x];
    for (unsigned i = 0; i < kEach; ++i)
      four.at[i] = element::multiply(static_cast<float>(all.at[i]), unit);
    return four;
  }
};

// Elements behind the last of a block have no magnitude: they are less than every other.
constexpr std::uint32_t kNone = 0x80000000U;

__device__ bool reaches(std::uint32_t magnitude, std::uint32_t least) {
  return magnitude != kNone && magnitude >= least;
}

// The largest magnitude that enough elements reach, found bit by bit.
__device__ std::uint32_t threshold(const std::uint32_t* magnitudes, std::uint32_t kept,
                                   Shared& shared) {
  constexpr int kBits = 31;
  std::uint32_t least = 0;
  for (int bit = kBits - 1; bit >= 0; --bit) {
    const std::uint32_t higher = least | (1U << bit);
    std::uint32_t count = 0;
    for (unsigned i = 0; i < kEach; ++i) count += reaches(magnitudes[i], higher) ? 1 : 0;
    if (count_of_all(count, bit % 2, shared) >= kept) least = higher;
  }
  return least;
}

// The chosen elements, then their numbers.
struct TopKFormat {
  using Number = std::uint16_t;
  __device__ static Four encode(const Four& from, const CodecBlock& block, std::byte* bytes,
                                Shared& shared) {
    std::uint32_t magnitudes[kEach];
    for (unsigned i = 0; i < kEach; ++i)
      magnitudes[i] = first_element() + i < block.count ? bits_of(from.at[i]) & kMagnitude : kNone;
    const std::uint32_t least = threshold(magnitudes, block.kept, shared);
    std::uint32_t above = 0;
    std::uint32_t equal = 0;
    for (unsigned i = 0; i < kEach; ++i) {
      above += reaches(magnitudes[i], least + 1) ? 1 : 0;
      equal += magnitudes[i] == least ? 1 : 0;
    }
    std::uint32_t wanted = block.kept - count_of_all(above, 1, shared);  // of those that are equal
    const std::uint32_t before = count_before(equal, 0, shared);
    wanted = wanted > before ? min(wanted - before, equal) : 0;
    std::uint32_t place = count_before(above + wanted, 1, shared);
    auto* const elements = reinterpret_cast<float*>(bytes);
    auto* const numbers = reinterpret_cast<Number*>(bytes + block.kept * sizeof(float));
    Four decoded = {};
    for (unsigned i = 0; i < kEach; ++i) {
      const bool is_equal = magnitudes[i] == least && wanted > 0;
      if (is_equal) --wanted;
      if (!is_equal && !reaches(magnitudes[i], least + 1)) continue;
      elements[place] = decoded.at[i] = from.at[i];
      numbers[place++] = static_cast<Number>(first_element() + i);
    }
    return decoded;
  }
  __device__ static Four decode(const std::byte* bytes, const CodecBlock& block, Shared& shared) {
    const auto* const elements = reinterpret_cast<const float*>(bytes);
    const auto* const numbers = reinterpret_cast<const Number*>(bytes + block.kept * sizeof(float));
    for (unsigned i = 0; i < kEach; ++i) shared.elements[first_element() + i] = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < block.kept; i += kThreads)
      if (numbers[i] < block.count) shared.elements[numbers[i]] = elements[i];
    __syncthreads();
    Four four;
    for (unsigned i = 0; i < kEach; ++i) four.at[i] = shared.elements[first_element() + i];
    __syncthreads();  // before the next operand
    return four;
  }
};

__device__ float mean(double sum, std::uint32_t count) {
  if (count == 0) return 0;
  return static_cast<float>(element::divide(sum, static_cast<double>(count)));
}

// The means of the positive and of the negative elements, then a bit for each.
struct OneBitFormat {
  struct Means {
    float positive;
    float negative;
  };
  __device__ static Means means_of(const Four& from, const CodecBlock& block, Shared& shared) {
    double positive = 0;
    double negative = 0;
    std::uint32_t negatives = 0;
    for (unsigned i = 0; i < kEach; ++i) {
      const auto value = static_cast<double>(from.at[i]);
      if (!(value < 0)) positive = element::add(positive, value);
      if (!(value > 0)) negative = element::add(negative, value);
      negatives += bits_of(from.at[i]) >> 31;
    }
    positive = sum_in_warp(positive);
    negative = sum_in_warp(negative);
    if (threadIdx.x % kWarp == 0) {
      shared.sums[0][threadIdx.x / kWarp] = positive;
      shared.sums[1][threadIdx.x / kWarp] = negative;
    }
    negatives = count_of_all(negatives, 0, shared);
    return {mean(sum_of_warps(shared.sums[0]), block.count - negatives),
            mean(sum_of_warps(shared.sums[1]), negatives)};
  }
  __device__ static Four encode(const Four& from, const CodecBlock& block, std::byte* bytes,
                                Shared& shared) {
    constexpr unsigned kBits = 8;
    const Means means = means_of(from, block, shared);
    std::uint32_t bits = 0;
    Four decoded;
    for (unsigned i = 0; i < kEach; ++i) {
      const std::uint32_t sign = bits_of(from.at[i]) >> 31;
      bits |= sign << i;
      decoded.at[i] = sign != 0 ? means.negative : means.positive;
    }
    bits |= __shfl_down_sync(kAll, bits, 1) << kEach;
    if (threadIdx.x == 0) *reinterpret_cast<Means*>(bytes) = means;
    if (first_element() % kBits == 0 && first_element() < block.count)
      bytes[sizeof(Means) + first_element() / kBits] = static_cast<std::byte>(bits);
    return decoded;
  }
  __device__ static Four decode(const std::byte* bytes, const CodecBlock& block, Shared&) {
    constexpr unsigned kBits = 8;
    Four four = {};
    if (first_element() >= block.count) return four;
    const Means means = *reinterpret_cast<const Means*>(bytes);
    const auto byte = static_cast<std::uint32_t>(bytes[sizeof(Means) + first_element() / kBits]);
    for (unsigned i = 0; i < kEach; ++i) {
      const bool is_negative = ((byte >> (first_element() % kBits + i)) & 1U) != 0;
      // Bits behind the last element are 0, which would read as positive.
      if (first_element() + i < block.count)
        four.at[i] = is_negative ? means.negative : means.positive;
    }
    return four;
  }
};

// s + what was lost before goes to `bytes`, and what it loses now is kept.
template <typename Format>
__device__ void encode_and_keep(Four s, const CodecBlock& block, std::byte* lost, std::byte* bytes,
                                Shared& shared) {
  if (lost == nullptr) {
    Format::encode(s, block, bytes, shared);
    return;
  }
  const Four before = load(lost, block);
  for (unsigned i = 0; i < kEach; ++i) s.at[i] = element::add(s.at[i], before.at[i]);
  const Four decoded = Format::encode(s, block, bytes, shared);
  Four kept;
  for (unsigned i = 0; i < kEach; ++i) kept.at[i] = element::subtract(s.at[i], decoded.at[i]);
  store(kept, lost, block);
}

__device__ const CodecBlock& block_of(const CodecRange& range) {
  return range.table[range.blocks.begin + blockIdx.x];
}

template <typename Format>
__global__ void encode_kernel(const EncodeTask task) {
  __shared__ Shared shared;
  const CodecBlock block = block_of(task.range);
  Four four = load(task.from, block);
  for (unsigned i = 0; i < kEach; ++i) four.at[i] = element::multiply(four.at[i], task.factor);
  encode_and_keep<Format>(four, block, task.lost, task.bytes + (block.at - task.range.at), shared);
}

// kShards: their number, if the compiler knows it; else 0.
template <typename Format, int kShards>
__device__ Four sum_of_shards(const AverageTask& task, const CodecBlock& block, Shared& shared) {
  constexpr int kSums = kShards > 0 ? kShards : kMostWaiting;
  const int shards = kShards > 0 ? kShards : static_cast<int>(task.shards);
  Four sums[kSums];
  int top = 0;
#pragma unroll
  for (int shard = 0; shard < shards; ++shard) {
    const std::byte* const bytes = task.from + task.stride * static_cast<std::uint64_t>(shard);
    sums[top++] = Format::decode(bytes + (block.at - task.range.at), block, shared);
    const int adds = element::adds_after(shard, shards);
#pragma unroll
    for (int add = 0; add < adds; ++add) {
      --top;
      for (unsigned i = 0; i < kEach; ++i)
        sums[top - 1].at[i] = element::add(sums[top - 1].at[i], sums[top].at[i]);
    }
  }
  return sums[0];
}

template <typename Format, int kShards>
__global__ void average_kernel(const AverageTask task) {
  __shared__ Shared shared;
  const CodecBlock block = block_of(task.range);
  const Four sum = sum_of_shards<Format, kShards>(task, block, shared);
  encode_and_keep<Format>(sum, block, task.lost, task.bytes + (block.at - task.range.at), shared);
}

template <typename Format>
__global__ void decode_kernel(const DecodeTask task) {
  __shared__ Shared shared;
  const CodecBlock block = block_of(task.range);
  store(Format::decode(task.bytes + (block.at - task.range.at), block, shared), task.to, block);
}

unsigned blocks_of(const CodecRange& range) {
  return static_cast<unsigned>(range.blocks.size());
}

struct Encode {
  const EncodeTask& task;
  cudaStream_t stream;
  template <typename Format>
  void operator()() const {
    encode_kernel<Format><<<blocks_of(task.range), kThreads, 0, stream>>>(task);
  }
};

struct Average {
  const AverageTask& task;
  cudaStream_t stream;
  template <typename Format, int kShards>
  void launch() const {
    average_kernel<Format, kShards><<<blocks_of(task.range), kThreads, 0, stream>>>(task);
  }
  template <typename Format>
  void operator()() const {
    switch (task.shards) {
      case 1:
        return launch<Format, 1>();
      case 2:
        return launch<Format, 2>();
      case 4:
        return launch<Format, 4>();
      case 8:
        return launch<Format, 8>();
      default:
        return launch<Format, 0>();
    }
  }
};

struct Decode {
  const DecodeTask& task;
  cudaStream_t stream;
  template <typename Format>
  void operator()() const {
    decode_kernel<Format><<<blocks_of(task.range), kThreads, 0, stream>>>(task);
  }
};

template <typename With>
void choose(Kind kind, const With& with) {
  switch (kind) {
    case Kind::kBFloat16:
      return with.template operator()<HalfFormat<element::BFloat16>>();
    case Kind::kFloat16:
      return with.template operator()<HalfFormat<element::Float16>>();
    case Kind::kInt8:
      return with.template operator()<Int8Format>();
    case Kind::kTopK:
      return with.template operator()<TopKFormat>();
    case Kind::kOneBit:
      return with.template operator()<OneBitFormat>();
  }
}

template <typename Launch, typename Task>
void queue(const Task& task, void* stream, const char* what) {
  if (task.range.blocks.size() == 0) return;
  choose(task.kind, Launch{task, static_cast<cudaStream_t>(stream)});
  cuda::check(cudaGetLastError(), what);
}

}  // namespace

void queue_encode(const EncodeTask& task, void* stream) {
  queue<Encode>(task, stream, "launch of encoding");
}

void queue_average(const AverageTask& task, void* stream) {
  queue<Average>(task, stream, "launch of averaging");
}

void queue_decode(const DecodeTask& task, void* stream) {
  queue<Decode>(task, stream, "launch of decoding");
}

}  // namespace lockstep::flat
