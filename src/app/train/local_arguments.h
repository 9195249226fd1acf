// The options of `lockstep train` for local steps: --local-steps, --outer and --local-state.
#pragma once

#include <lockstep/local_steps.h>

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace lockstep::app {

struct TrainArguments;

// As they were given. Nothing: they were not.
struct LocalArguments {
  std::optional<std::string> steps;
  std::optional<std::string> outer;
  std::optional<LocalState> state;
};

void add_local(CLI::App& parser, LocalArguments& arguments);

// BadInput, in one line, for words that cannot be understood, and for an --outer or a --local-state without --local-steps.
//
//   steps   H, or H0,FROM:H1,FROM:H2 …: another length from a step on
//   outer   mean, sgd:RATE[:MOMENTUM], nesterov[:RATE:MOMENTUM]
LocalSteps local_steps(const LocalArguments& arguments);

// BadInput for other options that make no sense with local steps.
void check_local(const TrainArguments& arguments);

}  // namespace lockstep::app
