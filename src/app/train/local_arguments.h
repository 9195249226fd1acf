// The options of `lockstep train` for local steps (--local-steps, --outer, --local-state, --fragments) and asynchronous ones (--staleness,
// --backups, --round, --stale-lr, --delay-compensation, --order, --replay).
#pragma once

#include <lockstep/local_steps.h>

#include <cstdint>
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
  std::optional<std::string> fragments;

  std::optional<std::string> staleness;
  std::optional<int> backups;
  std::optional<std::int64_t> round;
  std::optional<bool> slows_if_stale;
  std::optional<double> delay_compensation;
  std::optional<std::string> order;
  std::optional<std::string> replay;
  bool says_how_local() const { return outer || state || fragments; }
  bool says_how_asynchronous() const {
    return round || slows_if_stale || delay_compensation || order || replay;
  }
};

void add_local(CLI::App& parser, LocalArguments& arguments);

// BadInput, in one line, for words that cannot be understood, and for an option that says how without the one that says what:
// --outer without --local-steps, --round without --staleness.
//
//   steps   H, or H0,FROM:H1,FROM:H2 …: another length from a step on
//   outer   mean, sgd:RATE[:MOMENTUM], nesterov[:RATE:MOMENTUM]
//   fragments   P or P:KEEP
//   staleness   K, or any; 0 is the synchronous step
LocalSteps local_steps(const LocalArguments& arguments);

// BadInput for other options that make no sense with local steps.
void check_local(const TrainArguments& arguments);

}  // namespace lockstep::app
