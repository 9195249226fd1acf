// The tables and the memory that the kernels of an optimizer need on the device. Only in builds
// with CUDA.
#pragma once

#include "flat/cuda/handles.h"
#include "flat/device_update.h"

namespace lockstep::flat {

// A copy of ChunkTables in the device's memory.
//
// Threads, Blocking, Failure: as cuda::DeviceArray.
// Ownership: owns the tables; views are valid as long as it lives.
class DeviceTables {
 public:
  explicit DeviceTables(const ChunkTables& tables)
      : chunks_(tables.chunks()), places_(tables.places()) {}
  TablesView view() const { return {chunks_.data(), places_.data()}; }

 private:
  cuda::DeviceArray<Chunk> chunks_;
  cuda::DeviceArray<EntryOffsets> places_;
};

// The memory for clipping: the squares of all blocks, and the result. An update reads its factor
// and its skip from the result.
class ClipMemory {
 public:
  explicit ClipMemory(std::size_t blocks)
      : squares_(blocks), partials_(clip_partials(blocks)), arrived_(1), result_(1) {}

  double* squares() const { return squares_.data(); }
  const Clipping* result() const { return result_.data(); }
  const double* factor() const { return &result_.data()->factor; }
  const std::uint32_t* skip() const { return &result_.data()->skip; }
  ClipTask task(double most, double unscale = 1) const {
    return {squares_.data(), squares_.size(), most,   partials_.data(),
            arrived_.data(), result_.data(),  unscale};
  }

 private:
  cuda::DeviceArray<double> squares_;
  cuda::DeviceArray<double> partials_;
  cuda::DeviceArray<std::uint32_t> arrived_;
  cuda::DeviceArray<Clipping> result_;
};

}  // namespace lockstep::flat
