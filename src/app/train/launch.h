// `lockstep train`: starts its workers.
#pragma once

#include <string>
#include <vector>

namespace lockstep::app {

int train(const std::vector<std::string>& arguments);

}  // namespace lockstep::app
