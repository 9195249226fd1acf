#include "app/train/launch.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <optional>

#include "app/train/arguments.h"
#include "app/train/open_choices.h"
#include "app/train/run_directory.h"
#include "control/launch/launcher.h"
#include "control/launch/own_file.h"

namespace lockstep::app {
namespace {

// Long enough to write the checkpoint of a large model.
constexpr std::chrono::seconds kGrace{60};

std::string worker_program() {
  std::string path = control::own_file("lockstep-train");
  if (!path.empty()) return path;
  throw Unavailable(
      "this build of Lockstep has no LibTorch layer, which `train` needs: install libtorch-dev and "
      "build again");
}

}  // namespace

int train(const std::vector<std::string>& arguments) {
  const bool help = std::any_of(arguments.begin(), arguments.end(),
                                [](const auto& text) { return text == "--help" || text == "-h"; });
  if (help) {
    fmt::print("{}", train_help());
    return 0;
  }
  TrainArguments parsed = parse_train_arguments(arguments);
  const bool is_open = parsed.checkpoint == kOpen && parsed.verify.empty();
  make_open_choices(parsed);
  check_gpus(parsed);
  const std::string program = worker_program();
  std::optional<RunDirectory> directory;
  if (is_open) parsed.checkpoint = directory.emplace(parsed.model).path();
  control::RunOptions options;
  options.workers = parsed.workers;
  options.threads = parsed.threads;
  options.engine = parsed.engine;
  options.device = parsed.device;
  options.variables = worker_variables(parsed);
  options.grace = kGrace;
  options.leader_keeps_output = true;
  options.explained_codes = {1, 2};
  options.stopped_code = kStoppedEarly;
  options.command = {program};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  const auto chosen = as_options(parsed);  // of an option given twice the last one counts
  options.command.insert(options.command.end(), chosen.begin(), chosen.end());
  return control::run_job(options);
}

}  // namespace lockstep::app
