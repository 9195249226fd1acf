// The files and directories that the options of `lockstep train` name.
#pragma once

namespace lockstep::app {

struct TrainArguments;

// BadInput, in one line, for a file that is not there, that cannot be written, or that two options name.
void check_paths(const TrainArguments& arguments);

}  // namespace lockstep::app
