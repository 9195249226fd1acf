#include "bench/contenders.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/comm.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <csignal>

#include "control/launch/program.h"

namespace lockstep::bench {
namespace {

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

void check_names(const char* option, const Choice& asked, const std::vector<std::string>& known) {
  if (!asked) return;
  for (const std::string& name : *asked) {
    if (!contains(known, name)) {
      throw BadInput(
          fmt::format("{} {}: choose from {}, or none", option, name, fmt::join(known, ", ")));
    }
  }
}

std::vector<std::string> chosen_engines(const Choice& asked) {
  std::vector<std::string> built;
  std::vector<std::string> known;
  for (const EngineInfo& engine : engines()) {
    // `thread` is not for processes, `nccl` moves memory of the CPU as `shm` does, and workers of `mpi` need MPI's launcher.
    if (engine.name == "thread" || engine.name == "nccl" || engine.name == "mpi") continue;
    known.push_back(engine.name);
    if (engine.built) built.push_back(engine.name);
    if (asked && contains(*asked, engine.name) && !engine.built)
      throw Unavailable(fmt::format("--engines {}: {}", engine.name, engine.about));
  }
  check_names("--engines", asked, known);
  return asked.value_or(built);
}

bool asked_for(const Choice& asked, const std::string& name) {
  return !asked || contains(*asked, name);
}

std::vector<std::string> launched(const Launch& launch) {
  std::vector<std::string> words = {control::own_program(),
                                    "run",
                                    "--quiet",
                                    "-n",
                                    std::to_string(launch.workers),
                                    "--threads",
                                    std::to_string(launch.threads)};
  if (!launch.engine.empty()) words.insert(words.end(), {"--engine", launch.engine});
  words.emplace_back("--");
  words.insert(words.end(), launch.command.begin(), launch.command.end());
  return words;
}

int death_signal_of(const std::vector<std::string>& command) {
  const bool ours =
      command.size() > 1 && command[0] == control::own_program() && command[1] == "run";
  return ours ? SIGKILL : SIGTERM;
}

const Program::Variables& allocator_settings() {
  static const Program::Variables settings = {{"MALLOC_MMAP_MAX_", "0"},
                                              {"MALLOC_TRIM_THRESHOLD_", "17179869184"}};
  return settings;
}

std::string spoken(const Program::Variables& variables) {
  std::string text;
  for (const auto& [name, value] : variables)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text;
}

}  // namespace lockstep::bench
