// Elements of a type that is known only at run time.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "flat/fold.h"
#include "tests/support/elements.h"

namespace lockstep::testing {

using Bytes = std::vector<std::byte>;

// All are above `least` if it is not 0.
template <typename T>
Bytes rough_bytes_of(std::size_t count, std::uint32_t seed, float least) {
  std::vector<T> elements = rough_elements<T>(count, seed);
  const T special[] = {static_cast<T>(-0.0F), static_cast<T>(0.0F), static_cast<T>(6e-8F),
                       static_cast<T>(-1.0F), static_cast<T>(1e-41F)};
  for (std::size_t i = 0; i < std::size(special) && i < count; ++i)
    elements[(seed + 3 * i) % count] = special[i];
  for (T& element : elements) {
    if (least != 0)
      element =
          static_cast<T>(std::fabs(static_cast<Sum<T>>(element)) + static_cast<Sum<T>>(least));
  }
  Bytes bytes(count * sizeof(T));
  if (count > 0) std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

inline Bytes rough_bytes(DType dtype, std::size_t count, std::uint32_t seed, float least = 0) {
  switch (dtype) {
    case DType::kFloat64:
      return rough_bytes_of<double>(count, seed, least);
    case DType::kFloat16:
      return rough_bytes_of<Float16>(count, seed, least);
    case DType::kBFloat16:
      return rough_bytes_of<BFloat16>(count, seed, least);
    default:
      return rough_bytes_of<float>(count, seed, least);
  }
}

inline void drop_signs(Bytes& bytes, DType dtype) {
  for (std::size_t i = size_of(dtype) - 1; i < bytes.size(); i += size_of(dtype))
    bytes[i] &= std::byte{0x7f};
}

// The values of a stretch in another type.
inline Bytes in_type(DType to, DType from, const Bytes& bytes) {
  if (to == from) return bytes;
  const std::size_t count = bytes.size() / size_of(from);
  Bytes out(count * size_of(to));
  if (flat::is_half(from)) {
    flat::widen(from, reinterpret_cast<const std::uint16_t*>(bytes.data()),
                reinterpret_cast<float*>(out.data()), count);
  } else {
    flat::narrow(to, reinterpret_cast<const float*>(bytes.data()),
                 reinterpret_cast<std::uint16_t*>(out.data()), count);
  }
  return out;
}

}  // namespace lockstep::testing
