// Tensors of LibTorch in safetensors files, and what rank 0 does with files for all workers.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors.h"

namespace lockstep::steps {

// BadInput for dtypes that the format does not have. An earlier file stays beside it as `kept`, if that is a name.
void write_tensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                   const formats::Metadata& metadata, const std::string& kept = "");

// Copies from the file into tensors of the same names. Mismatch that names the first that the file
// has not, or has with another shape or dtype; nothing has been copied then.
void read_tensors(const formats::SafetensorsFile& file, const std::vector<NamedTensor>& tensors);

// What rank 0 found: a text, or the failure that all then throw. Collective.
std::string from_leader(Comm& comm, const std::function<std::string()>& read);

}  // namespace lockstep::steps
