// Where a checkpoint is and what its metadata is called; without LibTorch.
#pragma once

namespace lockstep::train {

inline constexpr const char* kCheckpointFile = "checkpoint.safetensors";
inline constexpr const char* kJobPrefix = "lockstep.job.";

}  // namespace lockstep::train
