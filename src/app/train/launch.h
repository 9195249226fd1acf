// `lockstep train`: starts its workers.
#pragma once

#include <string>
#include <vector>

namespace lockstep::app {

// The exit code of every worker of a job that was stopped early, in order and with a checkpoint if it has a place for
// one: EX_TEMPFAIL of sysexits.h, try again later. `train && deploy` must not deploy.
inline constexpr int kStoppedEarly = 75;

int train(const std::vector<std::string>& arguments);

}  // namespace lockstep::app
