// What both benchmarks do before and after measuring, and `lockstep bench` itself.
#pragma once

#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/contenders.h"

namespace lockstep::bench {

// Runs `lockstep bench WORDS…` and returns its exit code.
int bench(const std::vector<std::string>& words);

// Warns of conditions that make the numbers worthless, and says which systems are left out.
void announce(const CommonArguments& arguments, const Field& field);

// A report in all forms that the options offer.
struct Output {
  std::string json;
  std::string table;
  std::string plot;
};
void finish(const CommonArguments& arguments, const Output& output);

}  // namespace lockstep::bench
