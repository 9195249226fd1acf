// Where a worker computes. Pure but for take_device: a function of what was asked for, the worker's rank, and the GPUs of
// its host.
//
//   asked      JoinOptions::device, else LOCKSTEP_DEVICE, else what the engine that was asked for is for, else the CPU
//   which      a worker's GPU has its local rank for a number
//   sharing    LOCKSTEP_SHARE_GPUS=1, for tests: several workers on a GPU take turns. NCCL refuses two workers of one host
//              on one GPU, so it is told of a host for each
#pragma once

#include <lockstep/buffer.h>

#include <string>
#include <utility>
#include <vector>

#include "control/launcher_environment.h"
#include "flat/cuda/gpus.h"

namespace lockstep::control {

// Of `device` and `engine` empty means that nothing was said. BadInput for a device that there is not, and for an engine
// that is for another one.
DeviceKind device_asked(const std::string& device, const std::string& engine, const Lookup& lookup);

// As it is asked for: "cpu" or "cuda".
const char* name(DeviceKind kind) noexcept;

// The engine that a device needs; empty: any of those for the CPU.
std::string engine_for(DeviceKind kind);

struct GpuChoice {
  int index = 0;
  // For NCCL, before it is loaded; what the user has set stays.
  std::vector<std::pair<std::string, std::string>> variables;
};

// Unavailable when there is no GPU, BadInput when there are fewer than workers of this host.
GpuChoice choose_gpu(const LaunchInfo& info, const cuda::FoundGpus& found, const Lookup& lookup);

// Takes the GPU that is chosen for this process, with its variables; nothing to take for the CPU. To be called before
// anybody is met: every worker that cannot have a GPU says so at once.
Device take_device(DeviceKind kind, const LaunchInfo& info, cuda::Gpus& gpus, const Lookup& lookup);

}  // namespace lockstep::control
