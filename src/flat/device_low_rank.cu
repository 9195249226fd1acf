// Makes factors orthonormal on a device. All threads of one block work on a matrix, column by column, in float64. Sums are in one
// order, so the same matrix gives the same bits on every GPU of one kind.
#include "flat/cuda/runtime.h"
#include "flat/device_low_rank.h"
#include "flat/element.h"

namespace lockstep::flat {
namespace {

constexpr unsigned kThreads = 512;
constexpr double kNothingLeft = 1e-6;  // as in flat/low_rank.cpp

// A thread has the rows t, t + kThreads …, so nobody else reads what it writes.
struct Columns {
  double* memory;
  std::uint64_t rows;

  __device__ double* of(int column) const {
    return memory + rows * static_cast<std::uint64_t>(column);
  }
};

__device__ double dot(const double* a, const double* b, std::uint64_t rows) {
  __shared__ double sums[kThreads];
  double sum = 0;
  for (std::uint64_t i = threadIdx.x; i < rows; i += kThreads)
    sum = element::add(sum, element::multiply(a[i], b[i]));
  __syncthreads();  // the sums of before have been read
  sums[threadIdx.x] = sum;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      sums[threadIdx.x] = element::add(sums[threadIdx.x], sums[threadIdx.x + half]);
  }
  __syncthreads();
  return sums[0];
}

__device__ double norm(const Columns& columns, int column) {
  return element::square_root(dot(columns.of(column), columns.of(column), columns.rows));
}

// Twice, because the first time leaves what rounding has left.
__device__ void subtract_projections(const Columns& columns, int column) {
  double* const own = columns.of(column);
  for (int time = 0; time < 2; ++time) {
    for (int before = 0; before < column; ++before) {
      const double* const other = columns.of(before);
      const double along = dot(own, other, columns.rows);
      for (std::uint64_t i = threadIdx.x; i < columns.rows; i += kThreads)
        own[i] = element::subtract(own[i], element::multiply(along, other[i]));
    }
  }
}

// A column in the span of those before becomes an axis that is not.
__device__ void make_orthogonal(const Columns& columns, int column) {
  double* const own = columns.of(column);
  const double before = norm(columns, column);
  subtract_projections(columns, column);
  const bool finite = before - before == 0;
  if (!finite || norm(columns, column) > kNothingLeft * before) return;
  for (std::uint64_t axis = 0; axis < columns.rows; ++axis) {
    for (std::uint64_t i = threadIdx.x; i < columns.rows; i += kThreads) own[i] = i == axis ? 1 : 0;
    subtract_projections(columns, column);
    if (norm(columns, column) > kNothingLeft) return;
  }
}

__global__ void orthonormalise_kernel(float* matrix, Columns columns, int rank) {
  for (int column = 0; column < rank; ++column) {
    double* const own = columns.of(column);
    for (std::uint64_t i = threadIdx.x; i < columns.rows; i += kThreads)
      own[i] = matrix[i * static_cast<unsigned>(rank) + static_cast<unsigned>(column)];
    make_orthogonal(columns, column);
    const double length = norm(columns, column);
    for (std::uint64_t i = threadIdx.x; i < columns.rows; i += kThreads) {
      own[i] = element::divide(own[i], length);
      matrix[i * static_cast<unsigned>(rank) + static_cast<unsigned>(column)] =
          static_cast<float>(own[i]);
    }
  }
}

}  // namespace

void queue_orthonormalise(const OrthonormaliseTask& task, void* stream) {
  orthonormalise_kernel<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      task.matrix, {task.columns, task.rows}, task.rank);
  cuda::check(cudaGetLastError(), "launch of orthonormalising");
}

}  // namespace lockstep::flat
