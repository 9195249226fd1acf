// What a Trainer is asked for: checked, and as the properties of a job.
#pragma once

#include <lockstep/trainer.h>

#include "plan/position.h"
#include "torch/train/checkpoint.h"

namespace lockstep::train {

// BadInput for what cannot be trained.
void check_parts(const TrainerParts& parts);
void check_options(const TrainerOptions& options, int workers);

plan::DataOptions data_options(const TrainerParts& parts, const TrainerOptions& options);

// What a checkpoint must share with the job that goes on from it.
Job job_of(const TrainerParts& parts, const TrainerOptions& options);

}  // namespace lockstep::train
