#include "flat/low_rank.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/hash.h"

namespace lockstep::flat {
namespace {

// A column of which subtracting the others leaves less than this fraction is rounding of float32.
constexpr double kNothingLeft = 1e-6;

// In −1 … 1, exact in float.
double number_at(std::size_t row, int column) {
  const std::uint64_t bits =
      base::mix64((static_cast<std::uint64_t>(column) << 32) + static_cast<std::uint64_t>(row));
  return static_cast<double>(bits >> 40) * 0x1p-23 - 1;
}

using Column = std::vector<double>;

double dot(const Column& a, const Column& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Twice, because the first time leaves what rounding has left.
void subtract_projections(Column& column, const std::vector<Column>& others) {
  for (int time = 0; time < 2; ++time) {
    for (const Column& other : others) {
      const double along = dot(column, other);
      for (std::size_t i = 0; i < column.size(); ++i) column[i] -= along * other[i];
    }
  }
}

Column made_orthogonal(Column column, const std::vector<Column>& others) {
  const double before = std::sqrt(dot(column, column));
  subtract_projections(column, others);
  if (!std::isfinite(before) || std::sqrt(dot(column, column)) > kNothingLeft * before)
    return column;
  // Other directions, until one is none of the others.
  for (int number = static_cast<int>(others.size());; ++number) {
    for (std::size_t i = 0; i < column.size(); ++i) column[i] = number_at(i, number);
    const double whole = std::sqrt(dot(column, column));
    subtract_projections(column, others);
    if (std::sqrt(dot(column, column)) > kNothingLeft * whole) return column;
  }
}

}  // namespace

PowerSgd::PowerSgd(int rank, std::int64_t from) : rank_(rank), from_(from) {
  if (rank < 1) throw BadInput(fmt::format("power-sgd sends at least rank 1, not {}", rank));
  if (from < 0)
    throw BadInput(fmt::format("power-sgd begins with a step from 0 on, not with {}", from));
}

std::string PowerSgd::name() const {
  return fmt::format("power-sgd:{}:{}", rank_, from_);
}

void PowerSgd::encode(std::span<const float> block, std::byte* bytes) const {
  std::memcpy(bytes, block.data(), block.size_bytes());
}

void PowerSgd::decode(const std::byte* bytes, std::span<float> block) const {
  std::memcpy(block.data(), bytes, block.size_bytes());
}

bool worth_factors(std::size_t rows, std::size_t columns, int rank) {
  constexpr double kLeastGain = 2;
  return kLeastGain * (static_cast<double>(rows) + static_cast<double>(columns)) * rank <
         static_cast<double>(rows) * static_cast<double>(columns);
}

void orthonormalise(float* matrix, std::size_t rows, int rank) {
  const auto columns = static_cast<std::size_t>(rank);
  std::vector<Column> done;
  for (std::size_t number = 0; number < columns; ++number) {
    Column column(rows);
    for (std::size_t row = 0; row < rows; ++row) column[row] = matrix[row * columns + number];
    column = made_orthogonal(std::move(column), done);
    const double norm = std::sqrt(dot(column, column));
    for (double& value : column) value /= norm;
    for (std::size_t row = 0; row < rows; ++row)
      matrix[row * columns + number] = static_cast<float>(column[row]);
    done.push_back(std::move(column));
  }
}

void first_factor(float* matrix, std::size_t rows, int rank) {
  for (std::size_t row = 0; row < rows; ++row) {
    for (int column = 0; column < rank; ++column)
      *matrix++ = static_cast<float>(number_at(row, column));
  }
}

}  // namespace lockstep::flat
