#include "app/train/open_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace lockstep::app {
namespace {

// 0 if it is not there, or no number.
int number_in(const SavedJob& saved, const char* property) {
  const auto found = saved.find(property);
  return found == saved.end() ? 0 : std::atoi(found->second.c_str());
}

}  // namespace

void make_open_choices(TrainArguments& arguments) {
  make_open_choices(arguments, saved_job(arguments));
}

void make_open_choices(TrainArguments& arguments, const SavedJob& saved) {
  const auto choose = [&](std::string& choice, const char* property, const char* otherwise) {
    if (choice != kOpen) return;
    const auto found = saved.find(property);
    const bool known = found != saved.end() && (found->second == "on" || found->second == "off");
    choice = known ? found->second : otherwise;
  };
  choose(arguments.onednn, "onednn", kOpen);
  choose(arguments.flush_denormal, "flush_denormal", "off");
  choose(arguments.deterministic, "deterministic", "on");
  if (arguments.threads == 0)
    arguments.threads = std::clamp(number_in(saved, "threads"), 1, kMostThreads);
  if (arguments.workers == 0) {
    TrainArguments counted = arguments;  // the Trainer reads the shards itself
    if (counted.shards == 0) counted.shards = std::max(number_in(saved, "shards"), 0);
    arguments.workers = workers_for_this_host(counted);
  }
}

std::vector<std::string> as_options(const TrainArguments& arguments) {
  return {"--threads",        std::to_string(arguments.threads),
          "--onednn",         arguments.onednn,
          "--flush-denormal", arguments.flush_denormal,
          "--deterministic",  arguments.deterministic};
}

std::string advice(const TrainArguments& arguments, const SavedJob& saved,
                   const std::string& property) {
  if (const auto found = saved.find(property); found != saved.end()) {
    return fmt::format(
        "the checkpoint in {} was made with {} = {}: go on from it on a host that can, or use "
        "another checkpoint directory",
        arguments.checkpoint, property, found->second);
  }
  if (property == "threads") return "use fewer --threads";
  return property == "onednn" ? "use --onednn off" : "use --flush-denormal off";
}

}  // namespace lockstep::app
