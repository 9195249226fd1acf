#include "app/train/open_choices.h"

#include <algorithm>
#include <cstdlib>

#include "app/train/saved_job.h"

namespace lockstep::app {

void make_open_choices(TrainArguments& arguments) {
  const SavedJob saved = arguments.resume ? saved_job(arguments.checkpoint) : SavedJob{};
  const auto choose = [&](std::string& choice, const char* property, const char* otherwise) {
    if (choice != kOpen) return;
    const auto found = saved.find(property);
    const bool known = found != saved.end() && (found->second == "on" || found->second == "off");
    choice = known ? found->second : otherwise;
  };
  choose(arguments.onednn, "onednn", kOpen);
  choose(arguments.flush_denormal, "flush_denormal", "off");
  choose(arguments.deterministic, "deterministic", "on");
  if (arguments.threads == 0) {
    const auto found = saved.find("threads");
    const int threads = found == saved.end() ? 1 : std::atoi(found->second.c_str());
    arguments.threads = std::clamp(threads, 1, kMostThreads);
  }
}

std::vector<std::string> as_options(const TrainArguments& arguments) {
  return {"--threads",        std::to_string(arguments.threads),
          "--onednn",         arguments.onednn,
          "--flush-denormal", arguments.flush_denormal,
          "--deterministic",  arguments.deterministic};
}

}  // namespace lockstep::app
