// What PowerSGD (Vogels et al. 2019) computes besides matrix products. A gradient that is a matrix M travels as two thin
// factors, M ≈ P Qᵀ with `rank` columns each.
#pragma once

#include <lockstep/codec.h>

#include <cstddef>
#include <cstdint>

namespace lockstep::flat {

// What codec::power_sgd() gives. Blocks are of parameters that are no matrices, or too small ones: these travel as they are.
class PowerSgd : public Codec {
 public:
  PowerSgd(int rank, std::int64_t from);

  int rank() const { return rank_; }
  std::int64_t from() const { return from_; }

  std::string name() const override;
  bool has_error_feedback() const override { return true; }
  std::size_t bytes(std::size_t elements) const override { return elements * sizeof(float); }
  void encode(std::span<const float> block, std::byte* bytes) const override;
  void decode(const std::byte* bytes, std::span<float> block) const override;

 private:
  int rank_;
  std::int64_t from_;
};

// Whether the factors of such a matrix have less than half of its elements: PyTorch's rule.
bool worth_factors(std::size_t rows, std::size_t columns, int rank);

// Makes the columns of a matrix orthonormal, from the first on. It is stored row by row, and has at least as many rows as
// columns. A column that lies in the span of those before it, as far as rounding can tell, becomes another direction. Pure:
// additions in double, in one order, so that workers which have the same matrix get the same bits. NaN stays NaN.
void orthonormalise(float* matrix, std::size_t rows, int rank);

// The Q that training begins with: numbers in −1 … 1 that depend on row and column alone.
void first_factor(float* matrix, std::size_t rows, int rank);

}  // namespace lockstep::flat
