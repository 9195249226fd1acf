// What PowerSGD computes on a device besides matrix products (low_rank.h).
#pragma once

#include <cstdint>

namespace lockstep::flat {

// As orthonormalise(). A column that lies in the span of those before it becomes another direction than on a CPU.
//
// Queued on a stream; nothing waits, and nothing is allocated. The memory must stay valid until the stream has done the task.
struct OrthonormaliseTask {
  float* matrix = nullptr;  // row by row
  std::uint64_t rows = 0;
  int rank = 0;
  double* columns = nullptr;  // scratch memory: rows · rank values
};
void queue_orthonormalise(const OrthonormaliseTask& task, void* stream);

}  // namespace lockstep::flat
