// What a Trainer is asked for: checked, and as the properties of a job.
#pragma once

#include <lockstep/trainer.h>

#include "plan/position.h"
#include "torch/train/checkpoint.h"

namespace lockstep::train {

// BadInput for what cannot be trained.
void check_parts(const TrainerParts& parts);
void check_options(const TrainerOptions& options, int workers);

// Whether the job goes on from a checkpoint, if there is one.
bool resumes(const TrainerOptions& options);

// Mismatch when workers would not do the same about checkpoints. Collective.
void agree_on_checkpoints(Comm& comm, const TrainerOptions& options);

// Of the checkpoint in a directory; 0 if there is none. Collective.
int saved_shards(Comm& comm, const std::string& directory);

plan::DataOptions data_options(const TrainerParts& parts, const TrainerOptions& options);

// What a checkpoint must share with the job that goes on from it.
Job job_of(const TrainerParts& parts, const TrainerOptions& options);

}  // namespace lockstep::train
