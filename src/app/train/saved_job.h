// The job that a checkpoint was made by, read without LibTorch.
#pragma once

#include <map>
#include <string>

#include "app/train/arguments.h"

namespace lockstep::app {

using SavedJob = std::map<std::string, std::string>;

// Empty when there is no checkpoint in the directory. BadInput when it cannot be read.
SavedJob saved_job(const std::string& directory);

// Of the checkpoint that a job goes on from; empty when it begins anew.
inline SavedJob saved_job(const TrainArguments& arguments) {
  return arguments.resume ? saved_job(arguments.checkpoint) : SavedJob{};
}

}  // namespace lockstep::app
