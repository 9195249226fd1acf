// Where a worker computes: a function of what was asked for, the worker's rank, and the GPUs of its host. Everything
// but take_device() is pure.
//
//   asked      JoinOptions::device, else LOCKSTEP_DEVICE, else the device of the engine that was asked for, else the CPU
//   which      the number of a worker's GPU is its local rank
//   sharing    LOCKSTEP_SHARE_GPUS=1, for tests: several workers take turns on one GPU. NCCL refuses two workers of one
//              host on one GPU, so each of them tells NCCL another name of the host
#pragma once

#include <lockstep/buffer.h>

#include <string>
#include <utility>
#include <vector>

#include "control/launcher_environment.h"
#include "flat/cuda/gpus.h"

namespace lockstep::control {

// An empty `device` or `engine` means that nothing was said. BadInput for an unknown device, and for an engine that
// does not fit the device.
DeviceKind device_asked(const std::string& device, const std::string& engine, const Lookup& lookup);

// The word for it: "cpu" or "cuda".
const char* name(DeviceKind kind) noexcept;

// The engine that a device needs; empty if there is a choice.
std::string engine_for(DeviceKind kind);

struct GpuChoice {
  int index = 0;
  // Environment variables for NCCL, to be set before it is loaded. Variables that the user has set stay.
  std::vector<std::pair<std::string, std::string>> variables;
};

// Unavailable if there is no GPU; BadInput if this host has more workers than GPUs and they may not share.
GpuChoice choose_gpu(const LaunchInfo& info, const cuda::FoundGpus& found, const Lookup& lookup);

// Makes the chosen GPU the current one of this process, and sets its variables; does nothing for the CPU. Call it
// before the rendezvous: then a worker that cannot have a GPU says so at once, instead of after a wait.
Device take_device(DeviceKind kind, const LaunchInfo& info, cuda::Gpus& gpus, const Lookup& lookup);

}  // namespace lockstep::control
