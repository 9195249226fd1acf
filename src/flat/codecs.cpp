#include <fmt/format.h>
#include <lockstep/codec.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "base/environment.h"
#include "flat/codec_loops.h"
#include "flat/device_codec.h"
#include "flat/half.h"
#include "flat/low_rank.h"

namespace lockstep::codec {
namespace {

template <typename Value>
void put(std::byte*& to, Value value) {
  std::memcpy(to, &value, sizeof(value));
  to += sizeof(value);
}

template <typename Value>
Value take(const std::byte*& from) {
  Value value;
  std::memcpy(&value, from, sizeof(value));
  from += sizeof(value);
  return value;
}

class Half : public Codec, public flat::KnownToDevices {
 public:
  Half(DType dtype, const char* name) : dtype_(dtype), name_(name) {}

  std::string name() const override { return name_; }
  bool has_error_feedback() const override { return false; }
  std::size_t bytes(std::size_t elements) const override { return elements * size_of(dtype_); }
  flat::DeviceFormat on_device() const override {
    using Kind = flat::DeviceFormat::Kind;
    return {.kind = dtype_ == DType::kBFloat16 ? Kind::kBFloat16 : Kind::kFloat16};
  }
  void encode(std::span<const float> block, std::byte* bytes) const override {
    if (is_aligned(bytes)) return flat::narrow(dtype_, block.data(), bytes, block.size());
    std::array<std::uint16_t, kBlock> halves;
    flat::narrow(dtype_, block.data(), halves.data(), block.size());
    std::memcpy(bytes, halves.data(), this->bytes(block.size()));
  }
  void decode(const std::byte* bytes, std::span<float> block) const override {
    if (is_aligned(bytes)) return flat::widen(dtype_, bytes, block.data(), block.size());
    std::array<std::uint16_t, kBlock> halves;
    std::memcpy(halves.data(), bytes, this->bytes(block.size()));
    flat::widen(dtype_, halves.data(), block.data(), block.size());
  }

 private:
  static bool is_aligned(const std::byte* bytes) {
    return reinterpret_cast<std::uintptr_t>(bytes) % alignof(std::uint16_t) == 0;
  }

  DType dtype_;
  const char* name_;
};

// A unit, which is the largest magnitude / 127, then a byte for each element. A block whose largest magnitude is below
// 2^-100 counts as zeros: the quotient would overflow.
class Int8 : public Codec, public flat::KnownToDevices {
 public:
  explicit Int8(Feedback feedback) : feedback_(feedback) {}

  std::string name() const override { return has_error_feedback() ? "int8" : "int8:plain"; }
  bool has_error_feedback() const override { return feedback_ == Feedback::kError; }
  std::size_t bytes(std::size_t elements) const override { return sizeof(float) + elements; }
  flat::DeviceFormat on_device() const override {
    return {.kind = flat::DeviceFormat::Kind::kInt8};
  }

  void encode(std::span<const float> block, std::byte* bytes) const override {
    constexpr float kMost = 127;
    constexpr float kLeast = 0x1p-100F;
    const auto largest = std::bit_cast<float>(flat::largest_bits(block.data(), block.size()));
    const bool counts = std::isfinite(largest) && largest >= kLeast;
    put(bytes, largest < kLeast ? 0.0F : largest / kMost);  // an infinity or a NaN stays one
    if (!counts) {
      std::memset(bytes, largest < kLeast ? 0 : 1, block.size());
      return;
    }
    flat::quantise(block.data(), kMost / largest, reinterpret_cast<std::int8_t*>(bytes),
                   block.size());
  }
  void decode(const std::byte* bytes, std::span<float> block) const override {
    const auto unit = take<float>(bytes);
    flat::dequantise(reinterpret_cast<const std::int8_t*>(bytes), unit, block.data(), block.size());
  }

 private:
  Feedback feedback_;
};

// The numbers of the elements within their block, then the elements. Of two with one magnitude the first is taken.
class TopK : public Codec, public flat::KnownToDevices {
 public:
  explicit TopK(double fraction) : fraction_(fraction) {}

  std::string name() const override { return fmt::format("top-k:{}", fraction_); }
  bool has_error_feedback() const override { return true; }
  std::size_t bytes(std::size_t elements) const override {
    return kept(elements) * (sizeof(Number) + sizeof(float));
  }
  flat::DeviceFormat on_device() const override {
    return {.kind = flat::DeviceFormat::Kind::kTopK, .fraction = fraction_};
  }

  void encode(std::span<const float> block, std::byte* bytes) const override {
    // Magnitude first, then the number, so that no two are equal.
    std::array<std::uint64_t, kBlock> keys;
    for (std::size_t i = 0; i < block.size(); ++i) {
      const std::uint64_t magnitude = std::bit_cast<std::uint32_t>(block[i]) & 0x7fffffffU;
      keys[i] = (magnitude << 32) | (kBlock - i);
    }
    const auto end = keys.begin() + static_cast<std::ptrdiff_t>(block.size());
    const auto last = keys.begin() + static_cast<std::ptrdiff_t>(kept(block.size()));
    std::nth_element(keys.begin(), last - 1, end, std::greater<>());
    std::array<Number, kBlock> numbers;
    const auto chosen = std::transform(keys.begin(), last, numbers.begin(), [](std::uint64_t key) {
      return static_cast<Number>(kBlock - (key & 0xffffffffU));
    });
    std::sort(numbers.begin(), chosen);
    for (auto number = numbers.begin(); number != chosen; ++number) put(bytes, *number);
    for (auto number = numbers.begin(); number != chosen; ++number) put(bytes, block[*number]);
  }
  void decode(const std::byte* bytes, std::span<float> block) const override {
    std::fill(block.begin(), block.end(), 0.0F);
    const std::byte* values = bytes + kept(block.size()) * sizeof(Number);
    for (std::size_t i = 0; i < kept(block.size()); ++i) {
      const std::size_t number = take<Number>(bytes);
      const auto value = take<float>(values);
      if (number < block.size()) block[number] = value;
    }
  }

 private:
  using Number = std::uint16_t;
  std::size_t kept(std::size_t elements) const { return flat::top_k_of(elements, fraction_); }

  double fraction_;
};

class OneBit : public Codec, public flat::KnownToDevices {
 public:
  std::string name() const override { return "one-bit"; }
  bool has_error_feedback() const override { return true; }
  std::size_t bytes(std::size_t elements) const override {
    return 2 * sizeof(float) + (elements + 7) / 8;
  }
  flat::DeviceFormat on_device() const override {
    return {.kind = flat::DeviceFormat::Kind::kOneBit};
  }

  void encode(std::span<const float> block, std::byte* bytes) const override {
    const flat::SignedSums sums = flat::sums_by_sign(block.data(), block.size());
    const auto mean = [](double sum, std::size_t count) {
      return count == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(count));
    };
    put(bytes, mean(sums.positive, block.size() - sums.negatives));
    put(bytes, mean(sums.negative, sums.negatives));
    flat::pack_signs(block.data(), reinterpret_cast<std::uint8_t*>(bytes), block.size());
  }
  void decode(const std::byte* bytes, std::span<float> block) const override {
    const auto positive = take<float>(bytes);
    const auto negative = take<float>(bytes);
    flat::unpack_signs(reinterpret_cast<const std::uint8_t*>(bytes), positive, negative,
                       block.data(), block.size());
  }
};

}  // namespace

Ptr bf16() {
  return std::make_shared<Half>(DType::kBFloat16, "bf16");
}

Ptr fp16() {
  return std::make_shared<Half>(DType::kFloat16, "fp16");
}

Ptr int8(Feedback feedback) {
  return std::make_shared<Int8>(feedback);
}

Ptr top_k(double fraction) {
  constexpr double kMost = 0.5;
  if (!(fraction > 0) || fraction > kMost)
    throw BadInput(
        fmt::format("top-k sends a fraction above 0 and up to {}, not {}", kMost, fraction));
  return std::make_shared<TopK>(fraction);
}

Ptr one_bit() {
  return std::make_shared<OneBit>();
}

Ptr power_sgd(int rank, std::int64_t from) {
  return std::make_shared<flat::PowerSgd>(rank, from);
}

namespace {

// RANK or RANK:FROM. Null if it is neither.
Ptr parse_power_sgd(const std::string& words) {
  const std::size_t colon = words.find(':');
  const auto rank = base::parse_number(words.substr(0, colon));
  if (!rank || *rank != static_cast<int>(*rank)) return nullptr;
  if (colon == std::string::npos) return power_sgd(static_cast<int>(*rank));
  const auto from = base::parse_number(words.substr(colon + 1));
  return from ? power_sgd(static_cast<int>(*rank), *from) : nullptr;
}

}  // namespace

Ptr parse(const std::string& words) {
  constexpr std::string_view kPowerSgd = "power-sgd:";
  constexpr std::string_view kTopK = "top-k:";
  if (words == "none") return nullptr;
  if (words == "bf16") return bf16();
  if (words == "fp16") return fp16();
  if (words == "int8") return int8();
  if (words == "int8:plain") return int8(Feedback::kNone);
  if (words == "top-k") return top_k();
  if (words == "one-bit") return one_bit();
  if (words == "power-sgd") return power_sgd();
  if (words.starts_with(kPowerSgd)) {
    if (auto codec = parse_power_sgd(words.substr(kPowerSgd.size()))) return codec;
  }
  if (words.starts_with(kTopK)) {
    if (const auto fraction = base::parse_real(words.substr(kTopK.size()))) return top_k(*fraction);
  }
  throw BadInput(
      fmt::format("there is no codec \"{}\": choose none, bf16, fp16, int8, int8:plain, top-k, "
                  "top-k:FRACTION, one-bit, power-sgd, power-sgd:RANK or power-sgd:RANK:FROM",
                  words));
}

}  // namespace lockstep::codec
