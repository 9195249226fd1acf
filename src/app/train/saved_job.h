// The job that a checkpoint was made by, read without LibTorch.
#pragma once

#include <map>
#include <string>

namespace lockstep::app {

using SavedJob = std::map<std::string, std::string>;

// Empty when there is no checkpoint in the directory. BadInput when it cannot be read.
SavedJob saved_job(const std::string& directory);

}  // namespace lockstep::app
