// Tensors of LibTorch in safetensors files, and how rank 0 uses files for all workers.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <functional>
#include <string>
#include <vector>

#include "formats/safetensors.h"

namespace lockstep::steps {

// BadInput for dtypes that the format does not have. If `kept` is a name, an earlier file stays beside it under that.
void write_tensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                   const formats::Metadata& metadata, const std::string& kept = "");

// Copies from the file into tensors of the same names. If the file lacks one, or has it with another shape or dtype:
// Mismatch with its name, and nothing has been copied.
void read_tensors(const formats::SafetensorsFile& file, const std::vector<NamedTensor>& tensors);

// Rank 0 calls `read`. All workers return its text, or throw what it threw. Collective.
std::string from_leader(Comm& comm, const std::function<std::string()>& read);

}  // namespace lockstep::steps
