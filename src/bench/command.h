// What both benchmarks do before and after they measure; and `lockstep bench` itself.
#pragma once

#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/contenders.h"

namespace lockstep::bench {

// `lockstep bench WORDS…`: the exit code.
int bench(const std::vector<std::string>& words);

// Warns of what makes numbers worthless, and says who is left out.
void announce(const CommonArguments& arguments, const Field& field);

// Results in the forms that can be asked for.
struct Output {
  std::string json;
  std::string table;
  std::string plot;
};
void finish(const CommonArguments& arguments, const Output& output);

}  // namespace lockstep::bench
