// Contenders take turns: in each round every one runs once, alone on the machine.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "app/bench/contenders.h"

namespace lockstep::bench {

// What the workers of a run printed that is meant for us: lines that are JSON objects, without the
// launcher's mark.
std::vector<std::string> result_lines(const std::string& output);

// One line on standard error: rewritten on a terminal, else one for each round.
class RoundProgress {
 public:
  RoundProgress();
  ~RoundProgress();
  RoundProgress(const RoundProgress&) = delete;
  RoundProgress& operator=(const RoundProgress&) = delete;

  void show(int round, int rounds, const std::string& name);
  void say(const std::string& line);

 private:
  void clear();

  bool terminal_;
  bool shown_ = false;
  int last_round_ = -1;
};

// Called for each run that succeeded. An exception makes it a run that failed.
using TakeRun = std::function<void(std::size_t contender, const std::vector<std::string>& lines)>;

// Runs them all; false when one of ours failed. A contender that fails, or runs for longer than `longest`, is
// reported with what it printed, and left out of later rounds. Throws Interrupted.
bool run_rounds(const std::vector<Contender>& contenders, int rounds, const TakeRun& take,
                std::chrono::seconds longest = std::chrono::minutes(10));

}  // namespace lockstep::bench
