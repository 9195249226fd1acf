// One worker of `lockstep train`, or of `lockstep bench step`. A program of its own, so that the `lockstep` command
// need not load LibTorch, which takes half a second.
#include <fmt/format.h>
#include <lockstep/errors.h>
#include <lockstep/world.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "app/train/arguments.h"
#include "app/train/job.h"
#include "app/train/launch.h"
#include "app/train/open_choices.h"
#include "base/atomic_file.h"
#include "base/diagnosis.h"
#include "base/environment.h"
#include "base/standard_output.h"
#include "bench/step/worker.h"
#include "control/device_choice.h"
#include "torch/step/arithmetic.h"

namespace lockstep::app {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

// A job that was told to stop will be killed soon, so it does not wait long for its reader.
constexpr std::chrono::seconds kForAStoppedReader{2};

// Signals that stop the job in order, with a checkpoint. SIGPIPE: nobody reads what the leader shows any more.
constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};

// Most failures reach all workers at once, and one line, the leader's, is enough. The launcher knows
// more about a lost worker than we do. So the others wait this long before they speak, and usually the
// launcher has ended them by then. A leader that does not answer will not speak: then rank 1 speaks at
// once, and a leader that wakes up later says nothing.
constexpr std::chrono::seconds kLeaderSpeaksFirst{6};

// Signals that were ignored at the start stay so: SIGHUP under nohup, SIGINT and SIGQUIT after `&` in a script.
void stop_in_order() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested(); };
  action.sa_flags = SA_RESTART;
  for (const int signal : kStopSignals) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

void ignore_signals() {
  std::signal(SIGTTOU, SIG_IGN);  // the leader draws on the terminal from a group of its own
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is a full disk to us, not a reason to die
}

// Every step frees what the next one takes again. If much is free, glibc gives it back to the kernel, and the page faults
// of the next step take up to a tenth of its time. So all but the largest pieces are kept. Settings of the user's own stay.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargePiece = 32 << 20;  // the most that glibc accepts
  for (const char* const own :
       {"GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}) {
    if (base::environment(own)) return;
  }
  ::mallopt(M_MMAP_THRESHOLD, kLargePiece);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

// Ignores errors: if the terminal was closed meanwhile, the results are still in files.
void tell(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// When this worker tells the user of a failure.
enum class Voice { kNow, kLast, kNever };

Voice voice(const std::exception& error) {
  const std::string rank = base::environment("RANK").value_or("0");
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool of_the_leader =
      known != nullptr &&
      (known->kind() == ErrorKind::kTimeout || known->kind() == ErrorKind::kPeerLost) &&
      std::count(known->ranks().begin(), known->ranks().end(), 0) > 0;
  if (rank == "0") return of_the_leader ? Voice::kNever : Voice::kNow;
  return of_the_leader && rank == "1" ? Voice::kNow : Voice::kLast;
}

// Ends without destructors: shutting LibTorch down may take longer than the launcher waits.
[[noreturn]] void fail(const std::string& text, Voice voice, int code) {
  if (voice == Voice::kLast) {
    std::signal(SIGTERM, SIG_DFL);
    std::this_thread::sleep_for(kLeaderSpeaksFirst);
  }
  std::fflush(stdout);
  if (voice != Voice::kNever) tell(fmt::format("lockstep: {}\n", text));
  std::_Exit(code);
}

// Adds advice to the error if this host cannot do something.
void advised(const TrainArguments& arguments, const std::function<void()>& set) {
  try {
    set();
  } catch (const steps::CannotDo& error) {
    throw BadInput(fmt::format("{}: {}", error.what(),
                               advice(arguments, saved_job(arguments), error.property)));
  }
}

// An error may end this worker alone, such as a lack of memory. It tells the others, so that the leader can report it.
TrainReport trained(const TrainArguments& arguments, World& world) {
  try {
    return run_training(arguments, world);
  } catch (const c10::Error& error) {
    world.comm().leave(error.what_without_backtrace());
    throw;
  } catch (const std::exception& error) {
    world.comm().leave(base::diagnosis(error));
    throw;
  }
}

// The exit code.
int run(const std::vector<std::string>& texts) {
  TrainArguments arguments = parse_train_arguments(texts);
  make_open_choices(arguments);  // those that the command has not made
  advised(arguments, [&] {
    if (arguments.on(DeviceKind::kCuda)) steps::require_cuda();
    steps::set_arithmetic({.threads = arguments.threads,
                           .flush_denormals = arguments.flush_denormal == Switch::kOn,
                           .deterministic = arguments.deterministic == Switch::kOn});
  });
  World world = join({.engine = arguments.engine, .device = control::name(*arguments.device)});
  // Not earlier: until here there is nothing to keep, and a signal should end a worker that waits in join() at once.
  stop_in_order();
  advised(arguments, [&] { choose_onednn(arguments, world); });
  const TrainReport report = trained(arguments, world);
  if (world.leader()) {
    base::say(summary(arguments, report),
              report.result.stopped ? kForAStoppedReader : base::kForAReader);
    if (!arguments.report.empty()) base::write_file(arguments.report, to_json(arguments, report));
    if (report.result.stopped) tell(how_to_go_on(arguments, report));
  }
  world.comm().barrier().wait();
  if (report.result.stopped) return kStoppedEarly;
  if (world.leader()) {
    base::check_said();
    check_verified(arguments, report);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::app

int main(int argc, char** argv) {
  using namespace lockstep::app;  // NOLINT: this is the program
  if (argc > 1 && std::string(argv[1]) == "bench-step")
    lockstep::bench::step_worker({argv + 2, argv + argc});
  ignore_signals();
  keep_freed_memory();
  try {
    return run({argv + 1, argv + argc});
  } catch (const lockstep::BadInput& error) {
    fail(error.what(), voice(error), kUsage);
  } catch (const c10::Error& error) {
    // Without the calls that led there, which go on for a page.
    fail(error.what_without_backtrace(), voice(error), kFailed);
  } catch (const std::exception& error) {
    fail(lockstep::base::diagnosis(error), voice(error), kFailed);
  }
}
