// Choices that the options of a job may leave open. They are made once, before workers are started, and workers get
// them as options. If each worker chose for itself, workers on different hosts could choose differently, and the job
// would end with Mismatch.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "app/train/arguments.h"
#include "flat/cuda/gpus.h"

namespace lockstep::app {

// The job that a checkpoint was made by, read without LibTorch (saved_job.cpp).
using SavedJob = std::map<std::string, std::string>;

// Empty when there is no checkpoint in the directory. BadInput when it cannot be read.
SavedJob saved_job(const std::string& directory);

// Of the checkpoint that a job goes on from; empty when it begins with step 0.
inline SavedJob saved_job(const TrainArguments& arguments) {
  return arguments.resume ? saved_job(*arguments.checkpoint) : SavedJob{};
}

// What the options leave open comes from the checkpoint that the job goes on from, or else is the default. The number
// of workers also depends on the shards of that checkpoint. Whether oneDNN is used may stay open, because only a
// worker, which has LibTorch, can say. Afterwards an empty checkpoint directory means that there is none, or that none
// was chosen yet. BadInput if the checkpoint cannot be read, and if there is to be a worker for each GPU and there is
// no GPU.
void make_open_choices(TrainArguments& arguments);
void make_open_choices(TrainArguments& arguments, const SavedJob& saved,
                       cuda::Gpus& gpus = cuda::gpus());

// BadInput when the job's workers cannot have GPUs here: before any is started.
void check_gpus(const TrainArguments& arguments, cuda::Gpus& gpus = cuda::gpus());

// Environment variables for the workers' libraries, which read them before a worker runs. What the user has set stays.
std::vector<std::pair<std::string, std::string>> worker_variables(const TrainArguments& arguments);

// The choices as options, for the workers.
std::vector<std::string> as_options(const TrainArguments& arguments);

// What the user can do if this host cannot provide a property of the job: use another option, or, if the checkpoint has
// that property, another host.
std::string advice(const TrainArguments& arguments, const SavedJob& saved,
                   const std::string& property);

}  // namespace lockstep::app
