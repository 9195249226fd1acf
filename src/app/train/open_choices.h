// Choices of a job that its options may leave open: made once, before there are workers, which are then told. If each worker
// chose for itself, workers on unlike hosts would choose differently, and the job would end with Mismatch.
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

// What the options do not say comes from the checkpoint that the job goes on from, else it is the default; so does the
// number of shards that the workers of this host are counted by. Whether oneDNN is used may stay open: only a worker that
// has LibTorch can say. The directory for checkpoints is empty then if there are to be none, or nobody has chosen one.
// BadInput when the checkpoint cannot be read, and when workers are to be counted by GPUs and there are none.
void make_open_choices(TrainArguments& arguments);
void make_open_choices(TrainArguments& arguments, const SavedJob& saved,
                       cuda::Gpus& gpus = cuda::gpus());

// BadInput when the job's workers cannot have GPUs here: before any is started.
void check_gpus(const TrainArguments& arguments, cuda::Gpus& gpus = cuda::gpus());

// What the workers' libraries read before a worker can say anything to them; what the user has set stays.
std::vector<std::pair<std::string, std::string>> worker_variables(const TrainArguments& arguments);

// The choices as options, for the workers.
std::vector<std::string> as_options(const TrainArguments& arguments);

// What a person can do where this host cannot do as a property says: an option, or nothing but go elsewhere where the
// checkpoint has that property.
std::string advice(const TrainArguments& arguments, const SavedJob& saved,
                   const std::string& property);

}  // namespace lockstep::app
