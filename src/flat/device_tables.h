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

// The memory for norms over everything: rows of one number per block, and results. An update reads
// its factor and its skip from a result.
class ClipMemory {
 public:
  // All but the last are rows of squares, beside each other for queue_entry_norms.
  enum Row : std::size_t { kGradients, kWeights, kChanges, kLargest, kRows };

  explicit ClipMemory(std::size_t blocks)
      : blocks_(blocks),
        rows_(kRows * blocks),
        partials_(clip_partials(blocks)),
        arrived_(1),
        results_(2) {}

  std::size_t blocks() const { return blocks_; }
  double* row(Row row) const { return rows_.data() + row * blocks_; }
  // Of the gradients, by either norm, and of the changes. They lie beside each other.
  const Clipping* results() const { return results_.data(); }
  const Clipping* result(Row row = kGradients) const { return results() + (row == kChanges); }
  ClipTask task(double most, double unscale = 1, Row row = kGradients) const {
    return {this->row(row),
            blocks_,
            most,
            partials_.data(),
            arrived_.data(),
            results_.data() + (row == kChanges),
            unscale,
            row == kLargest ? Measure::kLargest : Measure::kSquares};
  }

 private:
  std::size_t blocks_;
  cuda::DeviceArray<double> rows_;
  cuda::DeviceArray<double> partials_;
  cuda::DeviceArray<std::uint32_t> arrived_;
  cuda::DeviceArray<Clipping> results_;
};

// The memory for norms by entry, and for the trust in each.
class EntryMemory {
 public:
  explicit EntryMemory(const std::vector<element::Trust>& rules)
      : rules_(rules), norms_(ClipMemory::kLargest * rules.size()), trusts_(rules.size()) {}

  double* norms(ClipMemory::Row row) const { return norms_.data() + row * rules_.size(); }
  const double* trusts() const { return trusts_.data(); }
  // Rows first … last.
  EntryNormsTask norms_task(const TablesView& tables, const ClipMemory& memory,
                            ClipMemory::Row first, ClipMemory::Row last) const {
    return {tables.places,
            static_cast<std::uint32_t>(rules_.size()),
            static_cast<std::uint32_t>(last - first + 1),
            memory.blocks(),
            memory.row(first),
            norms(first)};
  }
  // `other`: gradients or changes.
  TrustTask trust_task(ClipMemory::Row other, const double* factor) const {
    return {static_cast<std::uint32_t>(rules_.size()),
            rules_.data(),
            norms(ClipMemory::kWeights),
            norms(other),
            factor,
            trusts_.data()};
  }

 private:
  cuda::DeviceArray<element::Trust> rules_;
  cuda::DeviceArray<double> norms_;
  cuda::DeviceArray<double> trusts_;
};

}  // namespace lockstep::flat
