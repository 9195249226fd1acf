// Elements in memory, as collectives see them: no tensors, no ownership.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep {

enum class DType : std::uint8_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kInt32 = 5,
  kInt64 = 6,
  kUInt8 = 7,
};

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kUInt8:
      return 1;
  }
  return 0;
}

// "float32", "bfloat16" …
const char* name(DType dtype) noexcept;

// How a reduction combines two elements.
enum class ReduceOp : std::uint8_t { kSum = 1, kMin = 2, kMax = 3 };
const char* name(ReduceOp op) noexcept;

enum class DeviceKind : std::uint8_t { kCpu = 0, kCuda = 1 };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  bool operator==(const Device&) const = default;

  // "cpu", "cuda:0" …
  std::string text() const {
    return kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(index);
  }

  // Converts to the device type of a library that writes devices the same way, as torch::Device
  // does.
  template <typename Other>
  requires std::constructible_from<Other, const std::string&> && requires(const Other& other) {
    other.is_cuda();
    other.has_index();
  }
  operator Other() const {  // NOLINT: implicit, so that a program can pass world.device() on
    return Other(text());
  }
};

// Elements of one type at one address.
//
// Ownership: none. A caller that passes a Buffer to an operation keeps the memory alive and does
//            not touch it until the operation's Work has completed.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;  // elements, not bytes
  DType dtype = DType::kFloat32;
  Device device = {};
  void* stream = nullptr;  // the device stream that produces the elements; unused on CPUs

  std::size_t bytes() const { return count * size_of(dtype); }

  // The `length` elements that begin with element `first`.
  Buffer slice(std::size_t first, std::size_t length) const {
    Buffer part = *this;
    part.data = static_cast<std::byte*>(data) + first * size_of(dtype);
    part.count = length;
    return part;
  }
};

}  // namespace lockstep
