#include "app/train/launch.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "app/hosts/arguments.h"
#include "app/report/job_report.h"
#include "app/train/arguments.h"
#include "app/train/open_choices.h"
#include "base/choice.h"
#include "base/file_lock.h"
#include "base/files.h"
#include "control/launch/program.h"
#include "control/launch/remote.h"
#include "formats/checkpoint_file.h"

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

// For runs of one model that start within the same second.
constexpr int kMostAttempts = 10'000;

// False, with errno, if the directory exists already or cannot be made.
bool make_new(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return true;
  if (errno != ENOENT) return false;
  // Another run that ends may remove lockstep-runs, as long as it is empty, between these two calls: the caller tries
  // again.
  return (::mkdir(kRunsDirectory, 0777) == 0 || errno == EEXIST) &&
         ::mkdir(path.c_str(), 0777) == 0;
}

// A job that was killed leaves its lock file. The next job that takes the lock removes it.
void remove_free_lock(const std::string& directory) noexcept {
  const std::string path = base::join_path(directory, formats::kLockFile);
  try {
    if (base::exists(path)) base::FileLock::take(path, Deadline::after({}));
  } catch (const std::exception&) {  // it stays
  }
}

}  // namespace

std::string run_name(const std::string& model, const std::tm& began, int attempt) {
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%Y%m%d-%H%M%S", &began);
  return fmt::format("{}/{}-{}{}", kRunsDirectory, model, time.data(),
                     attempt == 1 ? "" : fmt::format("-{}", attempt));
}

RunDirectory::RunDirectory(const std::string& model) {
  const std::time_t now = std::time(nullptr);
  std::tm began{};
  ::localtime_r(&now, &began);
  for (int attempt = 1; attempt <= kMostAttempts; ++attempt) {
    path_ = run_name(model, began, attempt);
    if (make_new(path_)) return;
    if (errno != EEXIST && errno != ENOENT) break;
  }
  throw BadInput(
      fmt::format("cannot make {} for checkpoints: {}; choose a place with --checkpoint DIR, or "
                  "keep none with --checkpoint none",
                  path_, std::strerror(errno)));
}

RunDirectory::~RunDirectory() {
  remove_free_lock(path_);
  if (::rmdir(path_.c_str()) == 0) ::rmdir(kRunsDirectory);
}

namespace {

// Makes the choices that are still open, and the command of the workers.
void settle_job(const std::vector<std::string>& arguments, TrainArguments& parsed,
                std::optional<RunDirectory>& directory, control::RunOptions& options) {
  const bool is_open = !parsed.checkpoint && parsed.verify.empty();
  make_open_choices(parsed);
  check_gpus(parsed);
  if (is_open) parsed.checkpoint = directory.emplace(name(parsed.model)).path();
  options.threads = parsed.threads;
  options.engine = parsed.engine;
  options.device = parsed.device;
  options.variables = worker_variables(parsed);
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  // Behind the user's: the last of several equal options counts.
  const auto chosen = as_options(parsed);
  options.command.insert(options.command.end(), chosen.begin(), chosen.end());
}

int train_on_hosts(const std::vector<std::string>& arguments, const TrainArguments& parsed,
                   control::RunOptions& options) {
  options.leader_keeps_output = false;
  options.workers = parsed.host_workers;
  options.hosts = parsed.hosts;
  check_hosts(options);
  control::RemoteWords words{words_for_hosts(arguments), {}};
  words.before.insert(words.before.begin(), "train");
  return control::run_on_hosts(options, words);
}

}  // namespace

int train(const std::vector<std::string>& arguments) {
  if (base::asks_for_help(arguments)) {
    fmt::print("{}", train_help());
    return 0;
  }
  TrainArguments parsed = parse_train_arguments(arguments);
  std::optional<RunDirectory> directory;
  control::RunOptions options;
  options.command_name = "train";
  options.command = {worker_program()};
  options.nodes = parsed.nodes;
  options.wire = parsed.wire;
  options.bind = parsed.bind;
  options.grace = kGrace;
  options.min_workers = parsed.elastic.min_workers;
  if (parsed.workers_range) options.most_workers = parsed.workers_range->most;
  options.max_restarts = parsed.elastic.max_restarts;
  if (!options.nodes.join.empty() && !control::elastic(options))
    options.max_restarts = control::kMaxRestarts;  // node 0 has the limits
  options.step_timeout_s = parsed.elastic.step_timeout_s;
  options.timeout_s = parsed.elastic.timeout_s;
  options.faults = parsed.elastic.faults;
  options.fault_seed = parsed.elastic.fault_seed;
  // A worker of another place may become the leader: its lines go the way of all others.
  options.leader_keeps_output = !control::elastic(options);
  options.explained_codes = {1, 2};
  options.stopped_code = kStoppedEarly;
  if (!parsed.hosts.list.empty()) return train_on_hosts(arguments, parsed, options);
  const auto settle = [&](control::RunOptions& settled, int world) {
    parsed.workers = world;
    settle_job(arguments, parsed, directory, settled);
  };
  if (parsed.several_hosts()) {
    options.workers = parsed.host_workers;
    options.settle = settle;
  } else {
    settle(options, parsed.workers);
    options.workers = parsed.workers;
  }
  options.report = parsed.report;
  return run_with_report(std::move(options), ReportPart::kAdded);
}

}  // namespace lockstep::app
