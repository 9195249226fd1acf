// Which data a job reads, so that other data is noticed: on another worker, or when the job goes on later.
//
//   sampled   shapes, types and content of 64 samples spread over the data set; always there
//   whole     the content of all samples; where it was asked for
//
// Samples are read as those of epoch 0 of a job with seed 0, one at a time. Some are read twice: a data set whose samples
// are not the same the second time draws random numbers that are not the job's.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/dataset.h>

#include <string>

#include "torch/data/reader.h"
#include "torch/step/checkpoint.h"

namespace lockstep::steps {

struct DataRecord {
  std::string sampled;
  std::string whole;  // empty: not known
};

inline constexpr const char* kDataSampled = "data_sampled";
inline constexpr const char* kDataWhole = "data_whole";

enum class DataReading : std::uint8_t { kSampled, kWhole };

// BadInput for a data set that is empty, cannot be read, does not repeat itself, or seeds LibTorch's default generator.
DataRecord record_of(const Dataset& dataset, DataReading reading,
                     const data::PrefetchOptions& prefetch);

// Mismatch that names the ranks, when workers read different data. Collective.
void agree_on_data(Comm& comm, const DataRecord& record);

// The record to keep for a job that goes on from the checkpoint in a directory, with what that knows and this one does not.
// Mismatch for other data than the job began with; a line in the log, if the checkpoint cannot tell. Collective.
DataRecord continued(Comm& comm, const std::string& directory, const DataRecord& record);

// The job's properties with those of its data.
Properties with_data(Properties job, const DataRecord& record);

}  // namespace lockstep::steps
