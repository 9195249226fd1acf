// The data record: by it a job notices other data, on another worker or when it goes on later.
//
//   sampled   shapes, types and content of 64 samples spread over the data set; always there
//   whole     the content of all samples; only if it was asked for
//   sampling  how samples are drawn, if not every sample once per epoch: the weights, or that they come from streams
//
// Samples are read one at a time, as a job with seed 0 reads them in epoch 0. Some are read twice. If one is not the same
// the second time, the data set draws random numbers that the job does not control. Of streams, the first sample of each
// is read, of at most 64: what comes later could only be read after all before it.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/dataset.h>

#include <string>

#include "torch/data/reader.h"
#include "torch/data/streams.h"
#include "torch/step/checkpoint.h"

namespace lockstep::steps {

struct DataRecord {
  std::string sampled;
  std::string whole;     // empty: not known
  std::string sampling;  // empty: every sample once per epoch
};

inline constexpr const char* kDataSampled = "data_sampled";
inline constexpr const char* kDataWhole = "data_whole";
inline constexpr const char* kDataSampling = "data_sampling";

// How samples are drawn, for the record. Empty without weights.
std::string sampling_of(const WeightedSampling& weighted);

enum class DataReading : std::uint8_t { kSampled, kWhole };

// BadInput for a data set that is empty, cannot be read, gives other samples the second time, or seeds LibTorch's default
// generator.
DataRecord record_of(const Dataset& dataset, DataReading reading,
                     const data::PrefetchOptions& prefetch);
// The same of streams; it opens streams of its own.
DataRecord record_of_streams(const data::StreamSet& streams, int shards, std::uint64_t seed,
                             DataReading reading);

// Mismatch, with the ranks, if workers read different data. Collective.
void agree_on_data(Comm& comm, const DataRecord& record);

// The record of a job that goes on from the checkpoint in a directory: this one, with what only the checkpoint knows.
// Mismatch if the data is not what the job began with; a warning if the checkpoint cannot tell. Collective.
DataRecord continued(Comm& comm, const std::string& directory, const DataRecord& record);

// The job's properties with those of its data.
Properties with_data(Properties job, const DataRecord& record);

}  // namespace lockstep::steps
