// Choices of a job that its options may leave open: made once, before there are workers, which are then told.
#pragma once

#include <string>
#include <vector>

#include "app/train/arguments.h"

namespace lockstep::app {

// What the options do not say comes from the checkpoint that the job goes on from, else it is the default. Whether
// oneDNN is used may stay open: only a worker that has LibTorch can say.
// BadInput when the checkpoint cannot be read.
void make_open_choices(TrainArguments& arguments);

// The choices as options, for the workers.
std::vector<std::string> as_options(const TrainArguments& arguments);

}  // namespace lockstep::app
