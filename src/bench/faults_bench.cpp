#include "bench/faults_bench.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <signal.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <random>

#include "base/fd.h"
#include "bench/command.h"
#include "bench/faults/stamps.h"
#include "bench/process.h"
#include "control/launch/program.h"

namespace lockstep::bench {
namespace {

constexpr double kMs = 1e6;  // in ns
constexpr double kSecond = 1e9;
// A replacement that dies sooner is replaced later: the launcher takes it for a program that always crashes.
constexpr double kLivesLongEnough = 10.5 * kSecond;
constexpr int kWarmSteps = 10;
constexpr std::chrono::minutes kToStartAll{10};

// A job that runs until it is told to end, watched step by step. A timer calls look() all the time.
//
// Threads:   one caller.
// Blocking:  never.
// Failure:   the constructor throws Unavailable.
// Ownership: owns the stamps and the timer.
class Watcher : public Meanwhile {
 public:
  explicit Watcher(int workers) : workers_(workers) {
    file_.reset(::memfd_create("lockstep-bench-stamps", MFD_CLOEXEC));
    timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (file_ && ::ftruncate(file_.get(), sizeof(Stamps)) == 0) stamps_ = map_stamps(file_.get());
    if (stamps_ == nullptr || !timer_) throw Unavailable("no shared memory for the times of steps");
    tick(kSlowly);
  }
  ~Watcher() override { ::munmap(stamps_, sizeof(Stamps)); }

  Program::Variables variables() const {
    return {{kStampsVariable, fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get())}};
  }

  int fd() const override { return timer_.get(); }
  void readable() override {
    std::uint64_t ticks = 0;
    if (::read(timer_.get(), &ticks, sizeof ticks) < 0) return;
    const std::uint64_t count = std::min<std::uint64_t>(stamps_->count.load(), Stamps::kMost);
    for (; next_ < count; ++next_) {
      const std::int64_t ns = stamps_->all[next_].ns.load(std::memory_order_acquire);
      if (ns == 0) break;  // it is being written, or its worker was killed while it wrote
      take(stamps_->all[next_], ns);
    }
    look();
  }
  void ended(std::size_t) override {}

 protected:
  static constexpr long kSlowly = 2'000'000;  // ns
  static constexpr long kQuickly = 100'000;

  struct Worker {
    std::int64_t first = 0;  // ns
    std::int64_t last = 0;
    std::int64_t steps = 0;  // with all workers, since it joined or another one left
  };

  virtual void stamped(const Stamp& stamp, std::int64_t ns) = 0;
  virtual void look() = 0;

  void tick(long ns) {
    const itimerspec every{{0, ns}, {0, ns}};
    ::timerfd_settime(timer_.get(), 0, &every, nullptr);
  }
  bool all_train() const {
    return static_cast<int>(alive_.size()) == workers_ &&
           std::all_of(alive_.begin(), alive_.end(),
                       [](const auto& one) { return one.second.steps >= kWarmSteps; });
  }
  std::int64_t step() const { return step_; }
  const std::map<pid_t, Worker>& alive() const { return alive_; }
  void stop() { stamps_->stop.store(true); }
  bool stopping() const { return stamps_->stop.load(); }

  // Any that has lived long enough, or was there from the start. None: not now.
  std::optional<pid_t> choose_victim(std::mt19937_64& random) const {
    std::vector<pid_t> possible;
    for (const auto& [pid, worker] : alive_) {
      const bool old = static_cast<double>(Stamps::now() - worker.first) > kLivesLongEnough;
      if (old || killed_ == 0) possible.push_back(pid);
    }
    if (possible.empty()) return std::nullopt;
    return possible[random() % possible.size()];
  }
  // The moment before the kill.
  std::int64_t kill(pid_t victim) {
    const std::int64_t at = Stamps::now();
    ::kill(victim, SIGKILL);
    ++killed_;
    alive_.erase(victim);
    for (auto& one : alive_) one.second.steps = 0;
    victim_ = victim;
    return at;
  }
  int killed() const { return killed_; }
  pid_t victim() const { return victim_; }

 private:
  void take(const Stamp& stamp, std::int64_t ns) {
    if (stamp.pid == victim_) return;
    Worker& worker = alive_.try_emplace(stamp.pid, Worker{ns, ns, 0}).first->second;
    stamped(stamp, ns);
    worker.last = ns;
    if (stamp.workers == workers_) ++worker.steps;
    step_ = std::max(step_, stamp.step);
  }

  int workers_;
  base::Fd file_;
  base::Fd timer_;
  Stamps* stamps_ = nullptr;
  std::uint64_t next_ = 0;
  std::map<pid_t, Worker> alive_;
  std::int64_t step_ = -1;
  int killed_ = 0;
  pid_t victim_ = -1;
};

// Kills one worker after the other, each at a random moment of a step in which all train, and waits until all train again.
class Killer : public Watcher {
 public:
  Killer(int workers, int kills, KillTimes& times)
      : Watcher(workers), all_(workers), kills_(kills), times_(times) {}

 private:
  void stamped(const Stamp& stamp, std::int64_t ns) override {
    if (!struck_ || ns < *struck_) return;
    const double since = static_cast<double>(ns - *struck_) / kMs;
    if (stamp.workers < all_) {
      if (committed_ && first_ == stamp.pid)
        times_.step.push_back(static_cast<double>(ns - alive().at(stamp.pid).last) / kMs);
      if (committed_) return;
      committed_ = true;
      first_ = stamp.pid;
      times_.committed.push_back(since);
    } else if (committed_) {
      times_.rejoined.push_back(since);
      struck_.reset();
    }
  }

  void look() override {
    if (struck_ && !noticed_ && ::kill(victim(), 0) != 0 && errno == ESRCH) {
      noticed_ = true;
      times_.noticed.push_back(static_cast<double>(Stamps::now() - *struck_) / kMs);
      tick(kSlowly);
    }
    if (struck_ || stopping() || !all_train()) return;
    if (killed() == kills_) return stop();
    if (!planned_) {
      constexpr std::int64_t kSpread = 500'000'000;
      planned_ = Stamps::now() + static_cast<std::int64_t>(random_() % kSpread);
      tick(kQuickly);
    }
    if (Stamps::now() < *planned_) return;
    const auto victim = choose_victim(random_);
    if (!victim) return planned_.reset();
    committed_ = noticed_ = false;
    planned_.reset();
    struck_ = kill(*victim);
  }

  int all_;
  int kills_;
  KillTimes& times_;
  std::mt19937_64 random_{7};
  std::optional<std::int64_t> planned_;  // the moment of the next kill
  std::optional<std::int64_t> struck_;   // that of the last, until all train again
  bool noticed_ = false;
  bool committed_ = false;
  pid_t first_ = -1;  // the survivor that was first
};

// Counts steps for some time, from when all workers train; kills a worker at the given seconds.
class Counter : public Watcher {
 public:
  Counter(int workers, double seconds, std::vector<double> kills)
      : Watcher(workers), seconds_(seconds), kills_(std::move(kills)) {}

  // Steps a second; 0: the job has ended too early.
  double rate() const { return rate_; }

 private:
  void stamped(const Stamp&, std::int64_t) override {}
  void look() override {
    if (stopping() || (!began_ && !all_train())) return;
    if (!began_) {
      began_ = Stamps::now();
      first_ = step();
    }
    const double passed = static_cast<double>(Stamps::now() - *began_) / kSecond;
    if (next_ < kills_.size() && passed >= kills_[next_]) {
      if (const auto victim = choose_victim(random_)) {
        kill(*victim);
        ++next_;
      }
    }
    if (passed < seconds_) return;
    rate_ = static_cast<double>(step() - first_) / passed;
    stop();
  }

  double seconds_;
  std::vector<double> kills_;
  std::mt19937_64 random_{7};
  std::size_t next_ = 0;
  std::optional<std::int64_t> began_;
  std::int64_t first_ = 0;
  double rate_ = 0;
};

// Without --max-restarts if `restarts` is empty.
std::vector<std::string> command_of(const FaultsArguments& arguments, const std::string& system,
                                    const std::string& optimizer, const std::string& restarts) {
  const std::string program = control::own_file("lockstep-train");
  if (program.empty()) {
    throw Unavailable(
        "this build of Lockstep has no LibTorch layer, which `bench faults` needs: install "
        "libtorch-dev and build again");
  }
  StepArguments step;
  static_cast<CommonArguments&>(step) = arguments;
  step.model = arguments.model;
  step.batch = arguments.batch;
  step.optimizer = optimizer;
  step.precision = "float32";
  step.gpt_size = "tiny";
  step.context = 128;
  std::vector<std::string> words = {program, "bench-step", system,
                                    std::to_string(arguments.workers)};
  const auto job = step_job_words(step);
  words.insert(words.end(), job.begin(), job.end());
  auto command = launched({arguments.workers, 1, "shm", words});
  if (!restarts.empty()) command.insert(command.begin() + 2, {"--max-restarts", restarts});
  return command;
}

// False, after telling what it said, if the job has failed.
bool watched(const FaultsArguments& arguments, Watcher& watcher, std::chrono::seconds longest) {
  ProgramRunner runner;
  Program program{command_of(arguments, "stamped", arguments.optimizer, "1000000"),
                  watcher.variables(),
                  SIGKILL,
                  {}};
  const auto& memory = allocator_settings();
  program.variables.insert(program.variables.end(), memory.begin(), memory.end());
  const auto result =
      runner.run({program}, Deadline::after(kToStartAll + longest), &watcher).front();
  if (result.exit_code == 0) return true;
  fmt::print(stderr, "lockstep: the job ended with {}{}:\n{}{}", result.exit_code,
             result.timed_out ? ", because it took too long" : "", result.out, result.err);
  return false;
}

bool measure_kills(const FaultsArguments& arguments, FaultsReport& report) {
  fmt::print(stderr, "{} kills\n", arguments.kills);
  Killer killer(arguments.workers, arguments.kills, report.kills);
  return watched(arguments, killer, std::chrono::seconds(60) * arguments.kills);
}

// Rounds: a part of the minutes undisturbed, then the same part with kills.
bool measure_rate(const FaultsArguments& arguments, FaultsReport& report) {
  const double seconds = 60 * arguments.minutes / arguments.rounds;
  const auto longest = std::chrono::seconds(static_cast<std::int64_t>(seconds) + 60);
  const double samples = static_cast<double>(arguments.batch) * arguments.workers;
  std::mt19937_64 random(7);
  for (int round = 0; round < arguments.rounds; ++round) {
    fmt::print(stderr, "round {} of {}: {:.0f} s undisturbed, {:.0f} s at one kill a minute\n",
               round + 1, arguments.rounds, seconds, seconds);
    // One in each minute, and in what is left of one; not in the last tenth, so that its cost is in the round.
    std::vector<double> kills;
    for (double minute = 0; minute < seconds; minute += 60) {
      const double share = static_cast<double>(random() % 1000) / 1000;
      kills.push_back(minute + share * std::min(54.0, 0.9 * (seconds - minute)));
    }
    Counter calm(arguments.workers, seconds, {});
    Counter disturbed(arguments.workers, seconds, std::move(kills));
    if (!watched(arguments, calm, longest) || !watched(arguments, disturbed, longest)) return false;
    report.calm.push_back(calm.rate() * samples);
    report.disturbed.push_back(disturbed.rate() * samples);
  }
  return true;
}

// Steps in which nothing happens, of jobs that could lose a worker and of jobs that could not, in turns.
bool measure_cost(const FaultsArguments& arguments, FaultsReport& report) {
  fmt::print(stderr, "steps without faults\n");
  std::vector<Contender> contenders;
  for (const char* optimizer : {"sgd-momentum", "adamw"}) {
    for (const char* restarts : {"", "5"}) {
      const std::string with = *restarts == '\0' ? "" : " --max-restarts 5";
      contenders.push_back({optimizer + with,
                            true,
                            "lockstep::Trainer; pinned",
                            command_of(arguments, "trainer", optimizer, restarts),
                            allocator_settings(),
                            arguments.workers,
                            {}});
      report.costs.emplace_back();
      report.costs.back().system = contenders.back().name;
      report.costs.back().settings = contenders.back().settings;
    }
  }
  StepArguments step;
  static_cast<CommonArguments&>(step) = arguments;
  return run_rounds(contenders, {arguments.rounds, longest_run(step), arguments.turns},
                    report.costs);
}

}  // namespace

int bench_faults(const std::vector<std::string>& words) {
  const FaultsArguments arguments = parse_faults_arguments(words);
  announce(arguments, {});
  FaultsReport report{
      .workers = arguments.workers, .batch = arguments.batch, .minutes = arguments.minutes};
  bool good = true;
  for (const std::string& row : arguments.rows) {
    const auto measure = row == "kills"  ? measure_kills
                         : row == "rate" ? measure_rate
                                         : measure_cost;
    good = measure(arguments, report) && good;
  }
  finish(arguments, {as_json(report), as_table(report), as_plot(report)});
  return good ? 0 : 1;
}

}  // namespace lockstep::bench
