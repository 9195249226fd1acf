#include "app/train/launch.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>

#include "app/train/arguments.h"
#include "base/files.h"
#include "control/launch/launcher.h"

namespace lockstep::app {
namespace {

// Long enough to write the checkpoint of a large model.
constexpr std::chrono::seconds kGrace{60};

// Beside the command where it was built; in libexec where it was installed.
std::string worker_program() {
  const std::string folder = base::parent_path(base::link_target("/proc/self/exe"));
  for (const std::string& path :
       {base::join_path(folder, "lockstep-train"),
        base::join_path(base::parent_path(folder), "libexec/lockstep/lockstep-train")}) {
    if (base::exists(path)) return path;
  }
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
  const TrainArguments parsed = parse_train_arguments(arguments);
  control::RunOptions options;
  options.workers = parsed.workers;
  options.threads = parsed.threads;
  options.engine = parsed.engine;
  options.grace = kGrace;
  options.leader_keeps_output = true;
  options.explained_codes = {1, 2};
  options.command = {worker_program()};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  return control::run_job(options);
}

}  // namespace lockstep::app
