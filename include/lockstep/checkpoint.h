// Models in files: safetensors, readable by every framework, with no code in them.
#pragma once

#include <lockstep/data_parallel.h>

#include <string>

namespace lockstep {

// Writes parameters and buffers by name. The file appears whole or not at all; an earlier one stays
// until then. BadInput when the path cannot be written, Unavailable when the disk is full.
//
// Not collective: call it on the leader alone.
void save(const Replica& model, const std::string& path);
void save(const torch::nn::Module& module, const std::string& path);

// Copies the values of a file into the model, in place. BadInput when the file is absent or
// damaged; Mismatch that names the tensor when the file is of another model. Nothing has changed
// then. What the file has beyond the model's tensors is left alone.
//
// For a Replica it is collective: the leader reads, and all receive.
void load(Replica& model, const std::string& path);
void load(torch::nn::Module& module, const std::string& path);

}  // namespace lockstep
