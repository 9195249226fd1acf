#include "bench/rounds.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string_view>

#include "base/check.h"
#include "base/environment.h"
#include "bench/turns.h"

namespace lockstep::bench {

double quantile(const std::vector<double>& sorted, double fraction) {
  LOCKSTEP_CHECK(!sorted.empty(), "a quantile of no samples");
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(below);
  return sorted[below] + part * (sorted[above] - sorted[below]);
}

Summary summarise(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {samples.size(), quantile(samples, 0.5), quantile(samples, 0.99), quantile(samples, 0.25),
          quantile(samples, 0.75)};
}

double algorithm_bandwidth(std::size_t bytes, double microseconds) {
  return static_cast<double>(bytes) / microseconds / 1e3;
}

double bus_bandwidth(double algorithm_bandwidth, int workers) {
  return algorithm_bandwidth * 2 * (workers - 1) / workers;
}

namespace {

constexpr std::size_t kLinesOfAFailure = 15;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// The last lines that are no results, at most kLinesOfAFailure of them.
std::string last_words(const ProgramResult& result) {
  std::vector<std::string_view> words;
  for (const auto* text : {&result.out, &result.err}) {
    for (const auto line : lines_of(*text)) {
      if (result_lines(std::string(line)).empty()) words.push_back(line);
    }
  }
  const std::size_t first = words.size() > kLinesOfAFailure ? words.size() - kLinesOfAFailure : 0;
  std::string text;
  for (std::size_t i = first; i < words.size(); ++i) text += fmt::format("\n  {}", words[i]);
  return text;
}

std::string failure(const Contender& contender, const ProgramResult& result,
                    const std::string& problem, std::chrono::seconds longest) {
  std::string how = problem;
  if (result.timed_out)
    how = fmt::format("still ran after {} seconds", longest.count());
  else if (result.exit_code != 0)
    how = fmt::format("ended with {}", result.exit_code);
  return fmt::format("lockstep: {} {} and is left out{}", contender.name, how, last_words(result));
}

// Shows the progress on standard error: on a terminal one line that is rewritten, else one line per
// round.
class RoundProgress {
 public:
  ~RoundProgress() { clear(); }

  void show(int round, int rounds, const std::string& name) {
    if (terminal_) {
      fmt::print(stderr, "\r\033[Kround {} of {}: {}", round + 1, rounds, name);
      shown_ = true;
    } else if (round != last_round_) {
      fmt::print(stderr, "round {} of {}\n", round + 1, rounds);
    }
    last_round_ = round;
    std::fflush(stderr);
  }

  void say(const std::string& line) {
    clear();
    fmt::print(stderr, "{}\n", line);
    std::fflush(stderr);
  }

 private:
  void clear() {
    if (shown_) fmt::print(stderr, "\r\033[K");
    shown_ = false;
  }

  const bool terminal_ = ::isatty(STDERR_FILENO) == 1 && base::environment("TERM") != "dumb";
  bool shown_ = false;
  int last_round_ = -1;
};

}  // namespace

std::vector<std::string> result_lines(const std::string& output) {
  std::vector<std::string> results;
  for (std::string_view line : lines_of(output)) {
    if (line.starts_with('[')) {  // "[ 3] "
      const std::size_t end = line.find("] ");
      if (end == std::string_view::npos) continue;
      line.remove_prefix(end + 2);
    }
    if (line.starts_with('{') && line.ends_with('}')) results.emplace_back(line);
  }
  return results;
}

namespace {

// The rounds of a run.
class RoundsRun {
 public:
  RoundsRun(const std::vector<Contender>& contenders, const Rounds& rounds, const TakeRun& take)
      : contenders_(contenders), rounds_(rounds), take_(take) {
    end_.failed.assign(contenders.size(), false);
  }

  // Each round begins with another system, so that no system always runs first.
  void run(int round) {
    std::vector<std::size_t> together;
    std::vector<std::size_t> alone;
    for (std::size_t turn = 0; turn < contenders_.size(); ++turn) {
      const std::size_t i = (turn + static_cast<std::size_t>(round)) % contenders_.size();
      if (end_.failed[i]) continue;
      (rounds_.turns > 1 && contenders_[i].turn_takers > 0 ? together : alone).push_back(i);
    }
    if (!together.empty()) run_together(round, together);
    for (const std::size_t i : alone) {
      progress_.show(round, rounds_.count, contenders_[i].name);
      judge(i, run_alone(contenders_[i]), rounds_.longest);
    }
  }

  const RoundsEnd& end() const { return end_; }

 private:
  static Program program_of(const Contender& contender) {
    return {contender.command, contender.variables, death_signal_of(contender.command), nullptr};
  }

  ProgramResult run_alone(const Contender& contender) {
    const auto deadline = Deadline::after(rounds_.longest);
    if (!contender.workers) return runner_.run(program_of(contender), deadline);
    ProgramResult all;
    for (const ProgramResult& worker : runner_.run(contender.workers(), deadline, nullptr)) {
      all.out += worker.out;
      all.err += worker.err;
      all.timed_out = all.timed_out || worker.timed_out;
      if (all.exit_code == 0) all.exit_code = worker.exit_code;
    }
    return all;
  }

  void run_together(int round, const std::vector<std::size_t>& chosen) {
    progress_.show(round, rounds_.count,
                   fmt::format("{} systems take turns, {} each", chosen.size(), rounds_.turns));
    std::vector<int> workers;
    workers.reserve(chosen.size());
    for (const std::size_t i : chosen) workers.push_back(contenders_[i].turn_takers);
    TurnGiver turns(workers, rounds_.turns);
    std::vector<Program> programs;
    for (std::size_t place = 0; place < chosen.size(); ++place) {
      Program& program = programs.emplace_back(program_of(contenders_[chosen[place]]));
      for (const auto& variable : turns.variables(place)) program.variables.push_back(variable);
    }
    const auto longest = rounds_.longest * static_cast<std::int64_t>(chosen.size());
    const auto results = runner_.run(programs, Deadline::after(longest), &turns);
    for (std::size_t place = 0; place < chosen.size(); ++place)
      judge(chosen[place], results[place], longest);
  }

  void judge(std::size_t i, const ProgramResult& result, std::chrono::seconds longest) {
    std::string problem;
    try {
      if (!result.timed_out && result.exit_code == 0) take_(i, result_lines(result.out));
    } catch (const std::exception& error) {
      problem = fmt::format("gave no result ({})", error.what());
    }
    if (!result.timed_out && result.exit_code == 0 && problem.empty()) return;
    end_.failed[i] = true;
    end_.good = end_.good && !contenders_[i].ours;
    progress_.say(failure(contenders_[i], result, problem, longest));
  }

  const std::vector<Contender>& contenders_;
  const Rounds& rounds_;
  const TakeRun& take_;
  ProgramRunner runner_;
  RoundProgress progress_;
  RoundsEnd end_;
};

}  // namespace

RoundsEnd run_rounds(const std::vector<Contender>& contenders, const Rounds& rounds,
                     const TakeRun& take) {
  RoundsRun run(contenders, rounds, take);
  for (int round = 0; round < rounds.count; ++round) run.run(round);
  return run.end();
}

}  // namespace lockstep::bench
