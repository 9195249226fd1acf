// What decides the bits of a GPU besides what decides those of the CPU.
#pragma once

#include <lockstep/buffer.h>

#include <map>
#include <string>
#include <string_view>

namespace lockstep::steps {

// Whether a variable tells the device's libraries to compute in another way. No variable does to the CPU's here.
bool changes_arithmetic_of(Device device, std::string_view variable);

// Properties of a job by name: the device, such as "cpu" or "cuda NVIDIA H200 sm_90", and on a GPU whether its matrix units
// may round float32 (TF32).
std::map<std::string, std::string> device_properties(Device device);

}  // namespace lockstep::steps
