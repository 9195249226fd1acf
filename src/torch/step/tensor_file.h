// Tensors of LibTorch in safetensors files, and how rank 0 uses files for all workers.
#pragma once

#include <lockstep/comm.h>
#include <lockstep/data_parallel.h>

#include <functional>
#include <string>
#include <vector>

#include "formats/safetensors.h"

namespace lockstep::steps {

// Writes a file, whole or not at all. BadInput for dtypes that the format does not have. `began` is called when the first
// tensor is written; it may be empty.
void write_tensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                   const formats::Metadata& metadata, const std::function<void()>& began = {});

// Copies tensors into memory of the host. The copies that are there already are used again where they fit.
void copy_tensors(const std::vector<NamedTensor>& tensors, std::vector<NamedTensor>& copies);

// Whether no element is an infinity or NaN. For tensors of the host, contiguous; integers are finite.
bool all_finite(const torch::Tensor& tensor);

// Copies from the file into tensors of the same names. If the file lacks one, or has it with another shape or dtype:
// Mismatch with its name, and nothing has been copied.
void read_tensors(const formats::SafetensorsFile& file, const std::vector<NamedTensor>& tensors);

// Rank 0 calls `read`. All workers return its text, or throw what it threw. Collective.
std::string from_leader(Comm& comm, const std::function<std::string()>& read);

}  // namespace lockstep::steps
