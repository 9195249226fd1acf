#include "app/run_arguments.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <thread>

#include "app/hosts/arguments.h"
#include "app/report/job_report.h"
#include "base/command_line.h"
#include "comm/engines.h"

namespace lockstep::app {

const char* const kRunHelp = R"(Starts a program as N workers of one job and ends with them.

  lockstep run -n N [options] [--] PROGRAM [arguments]                    N workers here
  lockstep run --hosts node0:4,node1:4 [options] [--] PROGRAM [arguments]  4 workers on each of two hosts

  -n, --workers N    how many workers on this host, 1 to 4096; or MIN:MAX, as in 2:8: one for each core, within these
                     limits. The job is then elastic, as by --min-workers MIN, and `lockstep resize` changes the number
  -e, --env K=V      set a variable for every worker; may be given again
      --threads T    OpenMP and OpenBLAS threads per worker (default: what you exported, else 1)
      --wire W       auto: messages between hosts carry keyed tags, so that a changed one is noticed;
                     tagged: on one host, too; plain: none, for a network that you trust (default: auto)
      --engine E     what moves bytes between workers (see `lockstep doctor`; default: the best)
      --device D     cpu, or cuda: one GPU for each worker (default: cpu)
      --bind B       auto: to NUMA nodes, if there are several; cores: each worker to cores of its own; none (default: auto)
      --timeout S    seconds that joining, and any later operation, may take (default: 300)
      --max-restarts R   a worker that a signal kills is replaced, R times within 10 minutes (10 if only M is given)
      --min-workers M    fewer than M workers end the job (1 if only R is given)
      --step-timeout S   seconds; a worker that the others wait for in vain is then replaced, too (default: 30, or 10
                     times the median step if that is longer)
      --faults LIST      faults on purpose, for tests: kill=1/min,slow=200ms:0.5/min, or kill@5:1:update. The guide
                         docs/guide/faults.md has all kinds and points (default: $LOCKSTEP_FAULTS)
      --fault-seed N     of faults at random: the same gives the same sequence (default: 0)
      --grace S      seconds from a forwarded Ctrl-C, SIGTERM, SIGHUP or SIGQUIT to SIGKILL (default: 10)
      --report FILE  write what happened to workers, and what it cost, as JSON
      --log-dir D    also write each worker's output to D/rank-3.out and D/rank-3.err
  -q, --quiet        no notes, only failures

Several hosts, started from here by ssh. PROGRAM, its directory and `lockstep` are at the same path on every host:
      --hosts LIST       HOST:WORKERS,HOST:WORKERS …; without :WORKERS, -n counts. `ssh HOST true` works without a password
      --ssh COMMAND      another remote shell (default: $LOCKSTEP_SSH, else ssh -T -o BatchMode=yes …)
      --remote-lockstep PATH  the path of `lockstep` on every host (default: as here)
      --rendezvous HOST:PORT  where the hosts meet (default: the first of them, and a port at random)
Several hosts, without ssh: the same command on each of them, but for its --node-rank
      --nodes H          how many hosts; workers are counted over all of them
      --node-rank I      which of them this is, 0 to H-1
      --rendezvous HOST:PORT  where they meet: the host of --node-rank 0 as the others reach it, and a free port there
      --secret-file F    a file that only you can read, with the same content on every host:
                         (umask 077; openssl rand -hex 32 > F)
One host more, for an elastic job of several hosts that runs, or of one that was given --rendezvous and
--secret-file; also one that was lost and comes back:
      --join HOST:PORT   the --rendezvous of that job; with -n, --secret-file and PROGRAM as on its other hosts. Its
                         workers join between two batches. There are never more workers than shards

Each line that worker 3 prints appears as "[3] line". Ctrl-C goes to all workers; a second one
kills them. When a worker fails, the others are ended within 2 s and the exit code is that worker's.
With --max-restarts or --min-workers a worker that a signal kills is replaced, and the others go on.
A PyTorch script runs unchanged: the variables are those of torchrun.

Exit codes:
  0          every worker exited with 0
  N          a worker exited with N; of several, the one that the others failed because of
  128 + S    signal S killed a worker, or the launcher got it (Ctrl-C: 130, SIGTERM: 143, a closed terminal: 129)
  141        nobody reads the output any more
  127, 126   there is no such program, or it cannot be executed
  2          an option is wrong
  1          the output cannot be written, a host was lost, or the host does not allow the job

Examples:
  lockstep run -n 8 ./train --epochs 3
  lockstep run -n 2 --threads 4 --log-dir logs -- ./train
  lockstep run -n 2 --env LOCKSTEP_LOG=info -- python3 train.py
  lockstep run -n 4 --min-workers 2 --max-restarts 10 -- ./train
  lockstep run -n 2:8 -- ./train
  lockstep run --hosts node0:8,node1:8 -- ./train
  lockstep run --join node0:29400 --secret-file ~/.lockstep-secret -n 8 -- ./train
  lockstep run --nodes 2 --node-rank 1 --rendezvous node0:29400 --secret-file ~/.lockstep-secret -n 8 -- ./train
)";

namespace {

// Options that take the next word as their value.
constexpr std::array<std::string_view, 26> kWithValue = {"-n",
                                                         "--workers",
                                                         "--env",
                                                         "--log-dir",
                                                         "--timeout",
                                                         "--threads",
                                                         "--engine",
                                                         "--grace",
                                                         "--device",
                                                         "-e",
                                                         "--nodes",
                                                         "--node-rank",
                                                         "--rendezvous",
                                                         "--secret-file",
                                                         "--wire",
                                                         "--hosts",
                                                         "--ssh",
                                                         "--remote-lockstep",
                                                         "--bind",
                                                         "--min-workers",
                                                         "--max-restarts",
                                                         "--step-timeout",
                                                         "--faults",
                                                         "--fault-seed",
                                                         "--report",
                                                         "--join"};

// MIN:MAX is the number of workers that may change: the least is the number below which the job ends.
void take_workers(const control::WorkersAsked& asked, control::RunOptions& options) {
  options.workers =
      asked.start_with(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  options.most_workers = asked.most;
  if (!asked.most) return;
  if (options.min_workers) {
    throw BadInput(fmt::format("-n {}:{} says the least number of workers: leave out --min-workers",
                               asked.least, *asked.most));
  }
  if (!options.hosts.list.empty())
    throw BadInput("-n MIN:MAX works on one host so far; with --hosts give one number");
  options.min_workers = asked.least;
}

bool takes_next(std::string_view argument) {
  return std::find(kWithValue.begin(), kWithValue.end(), argument) != kWithValue.end();
}

}  // namespace

SplitArguments split_command(const std::vector<std::string>& arguments) {
  auto at = arguments.begin();
  while (at != arguments.end() && *at != "--" && at->size() > 1 && at->front() == '-') {
    at += takes_next(*at) && at + 1 != arguments.end() ? 2 : 1;
  }
  SplitArguments split{{arguments.begin(), at}, {}};
  if (at != arguments.end() && *at == "--") ++at;
  split.command.assign(at, arguments.end());
  return split;
}

control::RunOptions parse_run_arguments(const std::vector<std::string>& arguments) {
  SplitArguments split = split_command(arguments);
  control::RunOptions options;
  options.command = std::move(split.command);
  std::vector<std::string> variables;
  double grace_s = std::chrono::duration<double>(options.grace).count();
  std::optional<control::WorkersAsked> workers;

  CLI::App parser;
  parser.set_help_flag();
  add_workers(parser, workers);
  parser.add_option("-e,--env", variables)->allow_extra_args(false);
  parser.add_option("--log-dir", options.log_dir);
  parser.add_option("--report", options.report);
  base::add_number(parser, "--timeout", options.timeout_s);
  base::add_number(parser, "--threads", options.threads);
  parser.add_option("--engine", options.engine);
  base::add_choice(parser, "--device", control::kDevices, options.device);
  base::add_choice(parser, "--wire", control::kWires, options.wire);
  base::add_choice(parser, "--bind", control::kBinds, options.bind);
  base::add_number(parser, "--min-workers", options.min_workers);
  base::add_number(parser, "--max-restarts", options.max_restarts);
  base::add_number(parser, "--step-timeout", options.step_timeout_s);
  parser.add_option("--faults", options.faults);
  base::add_number(parser, "--fault-seed", options.fault_seed);
  base::add_number(parser, "--grace", grace_s);
  add_hosts(parser, options.hosts, options.nodes);
  parser.add_flag("-q,--quiet", options.quiet);
  base::parse_words(parser, split.own, [](const std::string& text) {
    throw BadInput(fmt::format("{}; see `lockstep run --help`", text));
  });
  if (!workers && options.hosts.list.empty())
    throw BadInput("how many workers? add -n, as in: lockstep run -n 2 -- ./train");
  if (workers) take_workers(*workers, options);
  // Its workers are newcomers of an elastic job, whose limits node 0 has.
  if (!options.nodes.join.empty() && !control::elastic(options))
    options.max_restarts = control::kMaxRestarts;
  if (!options.engine.empty()) comm::check_engine(options.engine);
  if (!options.hosts.list.empty()) check_hosts(options);
  if (options.step_timeout_s && !control::elastic(options)) {
    throw BadInput(
        "--step-timeout is for a job whose workers are replaced; add --max-restarts, or leave it "
        "out");
  }
  // Node 0 writes it.
  if (!options.report.empty() && options.hosts.list.empty() && options.nodes.rank == 0)
    check_report_path("--report", options.report);
  for (const auto& text : variables) options.variables.push_back(control::parse_variable(text));
  if (!std::isfinite(grace_s) || std::abs(grace_s) > 1e6) {
    throw BadInput(
        fmt::format("--grace {} is not possible; give seconds from 0 to 86400", grace_s));
  }
  options.grace = std::chrono::milliseconds(static_cast<std::int64_t>(grace_s * 1000));
  return options;
}

}  // namespace lockstep::app
