// What both benchmarks do before and after measuring, and `lockstep bench` itself.
#pragma once

#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/contenders.h"
#include "bench/rounds.h"

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

// Measures all systems of the field, adds their results to the report, and prints it. Returns the
// exit code: 1 if a system of ours failed.
template <typename Arguments, typename Report>
int measure_field(const Arguments& arguments, const Field& field, Report report) {
  announce(arguments, field);
  for (const Contender& contender : field.contenders) {
    auto& result = report.results.emplace_back();
    result.system = contender.name;
    result.settings = contender.settings;
  }
  const bool good =
      run_rounds(field.contenders, {arguments.rounds, longest_run(arguments)}, report.results);
  finish(arguments, {as_json(report), as_table(report), as_plot(report)});
  return good ? 0 : 1;
}

}  // namespace lockstep::bench
