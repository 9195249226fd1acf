// Models in safetensors files. Every framework can read them, and they contain no code.
#pragma once

#include <lockstep/data_parallel.h>

#include <string>

namespace lockstep {

// Writes parameters and buffers by name. The file appears complete or not at all; an earlier file
// stays until the new one is complete. Throws BadInput if the path cannot be written, Unavailable
// if the disk is full.
//
// Not collective: call it on the leader only.
void save(const Replica& model, const std::string& path);
void save(const torch::nn::Module& module, const std::string& path);

// Copies the values of a file into the model, in place. Throws BadInput if the file is absent or
// damaged. Throws Mismatch, with the name of the tensor, if the file belongs to another model.
// Nothing is changed then. Tensors of the file that the model does not have are ignored.
//
// For a Replica it is collective: the leader reads the file, and all workers receive the values.
void load(Replica& model, const std::string& path);
void load(torch::nn::Module& module, const std::string& path);

}  // namespace lockstep
