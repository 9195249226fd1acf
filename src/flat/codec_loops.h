// What codecs compute for each element of a block. Every function gives the bits of its scalar definition, with all
// instructions that a processor may have (dispatch.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::flat {

// The bits of the largest magnitude; a NaN is larger than everything.
std::uint32_t largest_bits(const float* from, std::size_t count);

// to[i] = from[i] · factor, rounded to an integer, ties to even. All products are within −127 … 127.
void quantise(const float* from, float factor, std::int8_t* to, std::size_t count);

// to[i] = from[i] · factor.
void dequantise(const std::int8_t* from, float factor, float* to, std::size_t count);

// What a shard sends: to[i] = from[i] · factor + lost[i], and what it keeps: lost[i] = sent[i] − decoded[i].
void add_scaled(const float* from, float factor, const float* lost, float* to, std::size_t count);
void subtract(const float* sent, const float* decoded, float* lost, std::size_t count);

// Bit i of `to` is the sign of from[i]; the bits behind the last are 0.
void pack_signs(const float* from, std::uint8_t* to, std::size_t count);

// to[i] = one of the two, by bit i.
void unpack_signs(const std::uint8_t* from, float positive, float negative, float* to,
                  std::size_t count);

// The sums of the elements whose sign bit is not set, and of those whose is: in float64, in lanes that are added as a tree.
struct SignedSums {
  double positive = 0;
  double negative = 0;
  std::size_t negatives = 0;
};
SignedSums sums_by_sign(const float* from, std::size_t count);

}  // namespace lockstep::flat
